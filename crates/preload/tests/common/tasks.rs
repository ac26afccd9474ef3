//! A control group that counts tasks.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// One of this test's own, in the first version's or the second's tree; removed at the end.
pub struct Tasks(pub PathBuf);

impl Tasks {
    /// With so many tasks at most; none where none may be made.
    pub fn new(most: u32) -> Option<Tasks> {
        let roots = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"];
        roots.iter().find_map(|root| {
            let path = PathBuf::from(format!("{root}/deckle-test-{}", std::process::id()));
            fs::create_dir(&path).ok()?;
            let made = Tasks(path);
            fs::write(made.0.join("pids.max"), most.to_string()).ok()?;
            Some(made)
        })
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // Tasks of the last service may be on their way out.
        let watchdog = Instant::now() + Duration::from_secs(20);
        while fs::remove_dir(&self.0).is_err() {
            let is_over = Instant::now() > watchdog;
            assert!(!is_over || std::thread::panicking(), "{:?}", self.0);
            if is_over {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
