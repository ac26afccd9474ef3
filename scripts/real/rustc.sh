# rustc, with jemalloc in it, compiles a file with many generic functions.
# needs: rustc

prepare() {
    {
        for n in $(seq 120); do
            echo "pub fn f$n<T: Into<u64> + Copy>(v: &[T]) -> Vec<String> {
                let mut m = std::collections::BTreeMap::new();
                for (i, &x) in v.iter().enumerate() { m.entry(x.into() % $n).or_insert_with(Vec::new).push(i); }
                m.iter().map(|(k, v)| format!(\"{k}:{v:?}:$n\")).collect() }"
        done
        echo 'fn main() { let v: Vec<u32> = (0..100).collect(); let mut n = 0;'
        for n in $(seq 120); do
            echo "for s in f$n(&v) { n += s.len(); }"
        done
        echo 'println!("{n}") }'
    } >many.rs
}

job() {
    rustc -C opt-level=1 -C debuginfo=1 -o many "$SHARED/many.rs"
    ./many
    sha256sum <many
}
