//! Libraries with thread-local data that come while a task runs.

use super::PLAIN;
use super::support::*;
use std::process::Command;
use std::sync::Mutex;

const SOURCE: &str = "static __thread int n = 40, big[500];
    int bump(void) { big[7]++; return n++ + big[7] - 1; }";

/// A library with thread-local data and `int bump(void)`, which counts calls of the thread from
/// 40 on.
fn library(directory: &std::path::Path, name: &str) -> Option<extern "C" fn() -> i32> {
    let source = directory.join("tls.c");
    std::fs::write(&source, SOURCE).ok()?;
    let file = directory.join(name);
    let done = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&file)
        .arg(&source)
        .status();
    assert!(done.ok()?.success(), "cc fails");
    let path = std::ffi::CString::new(file.to_str()?).unwrap();
    // SAFETY: a library without constructors and a function of that type.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null());
        let found = libc::dlsym(handle, c"bump".as_ptr());
        assert!(!found.is_null());
        Some(std::mem::transmute::<
            *mut libc::c_void,
            extern "C" fn() -> i32,
        >(found))
    }
}

pub fn libraries_with_thread_local_data_may_come_later() {
    let directory = std::env::temp_dir().join(format!("deckle-task-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let Some(before) = library(&directory, "before.so") else {
        eprintln!("SKIPPED libraries_with_thread_local_data_may_come_later: no C compiler (cc)");
        std::fs::remove_dir_all(&directory).unwrap();
        return;
    };
    let step = Step::new();
    static LATER: Mutex<Vec<extern "C" fn() -> i32>> = Mutex::new(Vec::new());
    let task = start(&[], move || {
        assert_eq!(before(), 40);
        step.set(1);
        step.await_value(2);
        PLAIN.set(PLAIN.get() + 1);
        assert_eq!(before(), 42, "counts 1 more in both of its variables");
        for later in LATER.lock().unwrap().iter() {
            assert_eq!(later(), 40);
        }
        assert_eq!((before(), PLAIN.get()), (44, 8));
        step.set(3);
    });
    assert_eq!(before(), 40);
    step.await_value(1);
    // More than the loader's reserve of 14, so that a module vector it had made would be moved.
    for i in 0..40 {
        let later = library(&directory, &format!("later-{i}.so")).unwrap();
        assert_eq!(later(), 40);
        LATER.lock().unwrap().push(later);
    }
    step.set(2);
    step.await_value(3);
    assert!(task.wait_end(LONG));
    assert_eq!((before(), PLAIN.get()), (42, 7));
    std::fs::remove_dir_all(&directory).unwrap();
}
