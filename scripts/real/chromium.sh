# Chromium without a window, with its own sandbox, so as a user without rights: a page's script
# builds a document, which is printed.
# packages: chromium
# needs: chromium
# outside: its sandbox leaves its renderers neither a network nor /proc to join deckle run by

job() {
    cp "$REAL/page.html" page.html
    local user=()
    if [ "$(id -u)" = 0 ]; then
        chown -R nobody .
        user=(setpriv --reuid nobody --regid nogroup --clear-groups)
    fi
    HOME=$PWD "${user[@]}" chromium --headless=new --disable-gpu --no-first-run \
        --user-data-dir="$PWD/profile" --disable-background-networking --disable-dev-shm-usage \
        --virtual-time-budget=20000 --dump-dom "file://$PWD/page.html" 2>log | tee dom | sha256sum
    grep -o 'sum [0-9]*' dom
}
