//! Whether a userfaultfd can be had here, and if not, which of the remedies applies.

use std::fmt;
use std::path::Path;

use deckle_uffd::{Errno, Features, Uffd, Via};

use crate::procfs::field;

/// What decides the way to a userfaultfd.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// The system call, for all faults.
    pub syscall: Result<(), Errno>,
    /// The device.
    pub device: Result<(), Errno>,
    /// The system call, for faults of user mode only (needs no privilege).
    pub user_mode_only: Result<(), Errno>,
    /// `/dev/userfaultfd` exists.
    pub device_exists: bool,
    /// `vm.unprivileged_userfaultfd`.
    pub sysctl: Option<u32>,
    /// A seccomp filter is on.
    pub seccomp: bool,
    /// This looks like a container.
    pub container: bool,
}

/// What would help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// `vm.unprivileged_userfaultfd=1`.
    Sysctl,
    /// Permission on `/dev/userfaultfd`, or `--device` for a container.
    Device,
    /// CAP_SYS_PTRACE and a seccomp profile that lets the call through.
    Capability,
    /// Another kernel.
    Kernel,
}

impl Facts {
    /// Asks the system.
    pub fn gather() -> Facts {
        let routes = Uffd::routes(false);
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Facts {
            syscall: routes.syscall,
            device: routes.device,
            user_mode_only: Uffd::open(Via::Syscall, true).map(drop),
            device_exists: Path::new("/dev/userfaultfd").exists(),
            sysctl: std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd")
                .ok()
                .and_then(|s| s.trim().parse().ok()),
            seccomp: field(&status, "Seccomp:").is_some_and(|v| v != "0"),
            container: crate::cgroup::in_container(),
        }
    }

    /// The way that `run` would use.
    pub fn way(&self) -> Option<Via> {
        if self.syscall.is_ok() {
            Some(Via::Syscall)
        } else if self.device.is_ok() {
            Some(Via::Device)
        } else {
            None
        }
    }

    /// What the kernel offers by that way.
    pub fn features(&self) -> Option<Features> {
        Uffd::probe(self.way()?, false).ok()
    }

    /// What would help, if there is no way.
    pub fn remedy(&self) -> Option<Remedy> {
        if self.way().is_some() {
            return None;
        }
        // The unprivileged form of the call is refused only by a filter or by an old kernel.
        let filtered = self.user_mode_only.is_err() && (self.seccomp || self.sysctl.is_some());
        Some(match (self.sysctl, self.device_exists) {
            (None, false) if !filtered => Remedy::Kernel,
            (_, true) => Remedy::Device,
            (_, false) if self.container => Remedy::Device,
            (_, false) if filtered => Remedy::Capability,
            _ => Remedy::Sysctl,
        })
    }
}

impl Remedy {
    /// The exact line.
    pub fn text(self, container: bool) -> &'static str {
        match (self, container) {
            (Remedy::Sysctl, _) => "as root: sysctl vm.unprivileged_userfaultfd=1",
            (Remedy::Device, true) => {
                "start the container with --device /dev/userfaultfd, \
                 and let its user read and write it"
            }
            (Remedy::Device, false) => {
                "as root: setfacl -m u:USER:rw /dev/userfaultfd \
                 (or sysctl vm.unprivileged_userfaultfd=1)"
            }
            (Remedy::Capability, _) => {
                "give CAP_SYS_PTRACE and a seccomp profile that lets userfaultfd through"
            }
            (Remedy::Kernel, _) => "run a kernel built with CONFIG_USERFAULTFD",
        }
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let say = |r: &Result<(), Errno>| match r {
            Ok(()) => "yes".to_owned(),
            Err(e) => e.to_string(),
        };
        write!(
            f,
            "userfaultfd(2): {}, /dev/userfaultfd: {}",
            say(&self.syscall),
            say(&self.device)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO: Result<(), Errno> = Err(Errno(libc::EPERM));

    fn facts() -> Facts {
        Facts {
            syscall: NO,
            device: NO,
            user_mode_only: Ok(()),
            device_exists: true,
            sysctl: Some(0),
            seccomp: false,
            container: false,
        }
    }

    #[test]
    fn the_remedy_follows_from_the_facts() {
        assert_eq!(facts().remedy(), Some(Remedy::Device));
        assert_eq!(
            Facts {
                device_exists: false,
                ..facts()
            }
            .remedy(),
            Some(Remedy::Sysctl)
        );
        let boxed = Facts {
            device_exists: false,
            container: true,
            seccomp: true,
            ..facts()
        };
        assert_eq!(boxed.remedy(), Some(Remedy::Device));
        assert!(
            Remedy::Device
                .text(true)
                .contains("--device /dev/userfaultfd")
        );
        let filtered = Facts {
            user_mode_only: NO,
            device_exists: false,
            seccomp: true,
            ..facts()
        };
        assert_eq!(filtered.remedy(), Some(Remedy::Capability));
        let none = Facts {
            sysctl: None,
            device_exists: false,
            user_mode_only: NO,
            ..facts()
        };
        assert_eq!(none.remedy(), Some(Remedy::Kernel));
        assert_eq!(
            Facts {
                syscall: Ok(()),
                ..facts()
            }
            .remedy(),
            None
        );
        assert_eq!(
            Facts {
                device: Ok(()),
                ..facts()
            }
            .way(),
            Some(Via::Device)
        );
    }
}
