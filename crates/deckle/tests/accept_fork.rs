//! Forks and execs of real programs.

mod accept;
mod common;

use accept::*;

#[test]
fn p20_p7_forks_of_every_kind_while_memory_is_away() {
    let _turn = turn();
    let program = compile("spawns", &[]);
    let ran = run("--memory-max 768M", &[&program, "150"]);
    ran.tell("fork, vfork, posix_spawn, system, popen with 150M away");
    ran.expect("all right");
    assert!(ran.peak("swapped_bytes") > 100 << 20);
}

#[test]
fn p20_a_fork_with_more_than_the_limit_is_right() {
    let _turn = turn();
    let program = compile("spawns", &[]);
    let ran = run("--memory-max 96M", &[&program, "150"]);
    ran.tell("forks with 150M under 96M");
    ran.expect("all right");
}

#[test]
fn p20_shells_pipe_substitute_and_loop() {
    let _turn = turn();
    if !have("p20_shells_pipe_substitute_and_loop", "bash") {
        return;
    }
    let script = "
        set -e
        big=$(head -c 6000000 /dev/zero | tr '\\0' 'x')
        n=$(echo \"$big\" | wc -c)
        for i in 1 2 3 4 5 6 7 8; do seq 20000 | sort -r | head -1 >/dev/null || true; done
        sum=$(seq 1000 |
            while read x; do echo $((x * 2)); done | paste -sd+ | (read s; echo $(($s))))
        ( big=y; [ \"$big\" = y ] )
        x=$(sh -c 'sh -c \"exit 7\"; echo $?')
        echo \"$n $sum $x ${#big}\"";
    let ran = run("--memory-max 128M", &["bash", "-c", script]);
    ran.tell("bash pipelines");
    ran.expect("6000001 1001000 7 6000000");
}

const PYTHON: &str = "
import subprocess, multiprocessing, os, threading, sys
b = bytearray(60 << 20)
for i in range(0, len(b), 4096): b[i] = 1 + (i >> 12) % 250
def right(): return all(b[i] == 1 + (i >> 12) % 250 for i in range(0, len(b), 4096))
assert subprocess.run(['cat'], input=b'x' * 3000000, capture_output=True).stdout == b'x' * 3000000
assert subprocess.run('echo a | tr a b', shell=True, capture_output=True).stdout == b'b\\n'
assert os.popen('echo c').read() == 'c\\n' and os.system('exit 3') >> 8 == 3
def work(k): return k * sum(b[::4096]) if right() else -1
if __name__ == '__main__':
    with multiprocessing.get_context('fork').Pool(2) as p:
        s = sum(b[::4096])
        assert p.map(work, range(6)) == [k * s for k in range(6)]
    stop = []
    def spin():
        while not stop: assert right()
    t = threading.Thread(target=spin); t.start()
    for k in range(4):
        p = os.fork()
        if p == 0: os._exit(10 + k if right() else 1)
        assert os.waitpid(p, 0)[1] >> 8 == 10 + k
    stop.append(1); t.join()
    assert right()
    print('all right')
";

#[test]
fn p20_python_runs_programs_pools_and_threads() {
    let _turn = turn();
    if !have("p20_python_runs_programs_pools_and_threads", "python3") {
        return;
    }
    let ran = run("--memory-max 512M", &["python3", "-c", PYTHON]);
    ran.tell("python3 with subprocess, multiprocessing and threads");
    ran.expect("all right");
}
