# Go, static and with cgo: goroutines over maps, collected several times.
# packages: golang-go gcc libc6-dev
# needs: go gcc
# variants: static cgo

prepare() {
    mkdir src
    cp "$REAL/heap.go" src/main.go
    cd src
    if [ "$VARIANT" = cgo ]; then
        cp "$REAL/cgo.go" cgo.go
    fi
    printf 'module heap\n\ngo 1.19\n' >go.mod
    local cgo=0
    [ "$VARIANT" != cgo ] || cgo=1
    CGO_ENABLED=$cgo GOCACHE=$PWD/../cache GOPATH=$PWD/../path GOFLAGS=-mod=mod GOTOOLCHAIN=local \
        go build -o ../heap .
}

job() {
    "$SHARED/heap"
}
