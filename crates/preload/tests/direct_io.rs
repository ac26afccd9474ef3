//! Defect 5: devices write into memory that is evicted meanwhile.

use crate::common::{compile, expect, run};
use crate::skipped::skipped;

/// Where a device or another machine held a page by a plain reference, what it wrote went to a page
/// that the program had no more. Those that pin pages, as disks and io_uring do, have them stay:
/// the kernel refuses to move what is pinned. What cannot be closed is in docs/limits.md.
#[test]
fn d05_what_is_read_into_memory_that_is_evicted_arrives() {
    let program = compile("d05_direct", &[]);
    let file = format!("{}/d05-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    for how in ["pread", "code", "ring", "fixed"] {
        let command = [program.to_str().expect("path"), how, &file];
        let ran = run(&["--memory-max", "64M"], &command);
        let _ = std::fs::remove_file(&file);
        if ran.out.contains("d05 no O_DIRECT here") || matches!(how, "ring" | "fixed") && no_ring()
        {
            skipped(format_args!("in part, {how}: this system has none of it"));
            continue;
        }
        expect(&ran, "d05 right");
        let met = ran.out.split("met ").nth(1).and_then(|m| m.lines().next());
        let met: u64 = met.and_then(|m| m.parse().ok()).expect("a number");
        eprintln!("{how}: {met} evictions within 60 reads");
        assert!(met > 0, "{how}: nothing was evicted while it was read");
    }
}

/// Whether the system refuses io_uring.
fn no_ring() -> bool {
    let mut parameters = [0_u64; 15];
    // SAFETY: writes its parameters, 120 bytes; gives a new descriptor.
    unsafe {
        let fd = libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr());
        libc::close(fd as i32);
        fd < 0
    }
}
