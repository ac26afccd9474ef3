# node: objects, buffers and worker threads, V8's heap and what lies beside it.
# packages: nodejs
# needs: node

job() {
    node "$REAL/node.js"
}
