//! Whether a userfaultfd can be had here, and if not, which remedy helps.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use deckle_sys::process::{effective_user, user_and_group};
use deckle_uffd::{Errno, Features, Uffd, Via};

use crate::accounts;
use crate::cgroup::{self, Container};
use crate::procfs::field;

/// The device that gives userfaultfds to who may open it.
pub const DEVICE: &str = "/dev/userfaultfd";
/// The group that gets it, by a package or by `deckle setup`.
pub const GROUP: &str = "deckle";

/// What decides the way to a userfaultfd.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The system call, for all faults.
    pub syscall: Result<(), Errno>,
    /// The device.
    pub device: Result<(), Errno>,
    /// The system call, for faults of user mode only (needs no privilege).
    pub user_mode_only: Result<(), Errno>,
    /// `vm.unprivileged_userfaultfd`.
    pub sysctl: Option<u32>,
    /// A seccomp filter is on.
    pub seccomp: bool,
    /// This looks like a container, of this kind.
    pub container: Option<Container>,
}

/// What stands between this process and the device; asked only where there is no way.
#[derive(Debug, Clone, Default)]
struct Around {
    /// Group and mode of the device, if it is there.
    device: Option<(u32, u32)>,
    /// The kernel has it, here or not.
    kernel_has: bool,
    /// Number of the group `deckle`.
    group: Option<u32>,
    /// The user is named in that group.
    is_member: bool,
    /// Groups of this process.
    groups: Vec<u32>,
    /// Name of the user.
    user: Option<String>,
}

/// What would help: one thing each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// The group has the device, and the user is in it since after this session began.
    LogIn,
    /// The group has the device, and the user is not in it.
    Join(String),
    /// No group has the device yet.
    Setup(String),
    /// The device is there, and something that confines this process refuses it.
    Confined,
    /// The kernel has the device, this `/dev` does not.
    NoDevice,
    /// The container has to be given the device.
    Give(Container),
    /// The container has the device, and its user is not in the device's group.
    GiveGroup(Container, u32),
    /// The container has the device, and the host lets nobody but root use it.
    HostSetup,
    /// Without the device: `vm.unprivileged_userfaultfd=1`.
    Sysctl,
    /// Without the device: that, and a filter that lets the call through.
    Filter,
    /// Another kernel.
    Kernel,
}

/// Group and mode of the device, if it is there.
pub fn device() -> Option<(u32, u32)> {
    let meta = std::fs::metadata(DEVICE).ok()?;
    Some((meta.gid(), meta.mode() & 0o777))
}

/// Whether the kernel has the device, in this `/dev` or not.
pub fn kernel_has_device() -> bool {
    let list = std::fs::read_to_string("/proc/misc").unwrap_or_default();
    list.lines().any(|line| line.ends_with(" userfaultfd")) || Path::new(DEVICE).exists()
}

/// How this program was called: by a path where it is not where root would find it.
pub fn me() -> String {
    let me = std::env::args().next();
    me.unwrap_or_else(|| "deckle".to_owned())
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
            sysctl: std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd")
                .ok()
                .and_then(|s| s.trim().parse().ok()),
            seccomp: field(&status, "Seccomp:").is_some_and(|v| v != "0"),
            container: cgroup::container(),
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
        self.way()
            .is_none()
            .then(|| self.remedy_in(&Around::gather()))
    }

    fn remedy_in(&self, around: &Around) -> Remedy {
        let is_refused = self.device == Err(Errno(libc::EACCES));
        let Some((group, mode)) = around.device else {
            return self.remedy_without_device(around);
        };
        let by_group = group != 0 && mode & 0o060 == 0o060;
        let user = || around.user.clone().unwrap_or_else(|| "USER".to_owned());
        match self.container {
            // A device cgroup says so, and hides the device's own rights.
            Some(kind) if !is_refused => Remedy::Give(kind),
            Some(kind) if by_group => Remedy::GiveGroup(kind, group),
            Some(_) => Remedy::HostSetup,
            None if !is_refused => Remedy::Confined,
            None if !by_group || around.group != Some(group) => Remedy::Setup(user()),
            None if around.is_member && !around.groups.contains(&group) => Remedy::LogIn,
            None => Remedy::Join(user()),
        }
    }

    fn remedy_without_device(&self, around: &Around) -> Remedy {
        // The unprivileged form of the call is refused only by a filter or by an old kernel.
        let filtered = self.user_mode_only.is_err() && (self.seccomp || self.sysctl.is_some());
        match self.container {
            Some(kind) if around.kernel_has => Remedy::Give(kind),
            None if around.kernel_has => Remedy::NoDevice,
            _ if filtered => Remedy::Filter,
            _ if self.sysctl.is_some() => Remedy::Sysctl,
            _ => Remedy::Kernel,
        }
    }
}

impl Around {
    fn gather() -> Around {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
        let groups = groups.unwrap_or("").split_whitespace();
        let mut groups: Vec<u32> = groups.filter_map(|n| n.parse().ok()).collect();
        groups.push(user_and_group().1);
        let user = accounts::user_name(effective_user());
        let group = accounts::group(GROUP);
        Around {
            device: device(),
            kernel_has: kernel_has_device(),
            is_member: group
                .as_ref()
                .zip(user.as_ref())
                .is_some_and(|(group, user)| group.members.contains(user)),
            group: group.map(|g| g.id),
            groups,
            user,
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BY_HAND: &str = "a device plugin that offers /dev/userfaultfd (docs/install.md)";
        match self {
            Remedy::LogIn => write!(
                f,
                "log in again, or run it by `sg {GROUP}`: you are in the group {GROUP}, and this \
                 session is older than that"
            ),
            Remedy::Join(user) => {
                write!(f, "as root: usermod -aG {GROUP} {user}; then log in again")
            }
            Remedy::Setup(user) => {
                write!(
                    f,
                    "as root: {} setup --user {user}; then log in again",
                    me()
                )
            }
            Remedy::Confined => write!(
                f,
                "what confines this process must let it have {DEVICE}: in a unit of systemd, \
                 DeviceAllow={DEVICE} rw"
            ),
            Remedy::NoDevice => write!(
                f,
                "this /dev has no userfaultfd, and the kernel has: in a unit of systemd, \
                 PrivateDevices=no; elsewhere mount {DEVICE} of the host there"
            ),
            Remedy::Give(Container::Kubernetes) => write!(f, "give the pod {BY_HAND}"),
            Remedy::Give(_) => write!(f, "start the container with --device {DEVICE}"),
            Remedy::GiveGroup(Container::Kubernetes, group) => write!(
                f,
                "in the pod's securityContext: supplementalGroups: [{group}], the group of {DEVICE}"
            ),
            Remedy::GiveGroup(_, group) => write!(
                f,
                "start the container with --group-add {group}, the group of {DEVICE}"
            ),
            Remedy::HostSetup => write!(
                f,
                "on the host, as root: deckle setup; its group then has {DEVICE}, and the \
                 container's user must be in a group of that number (--group-add)"
            ),
            Remedy::Sysctl => write!(f, "as root: sysctl vm.unprivileged_userfaultfd=1"),
            Remedy::Filter => write!(
                f,
                "a seccomp profile that lets userfaultfd through (deckle setup --seccomp), and on \
                 the host, as root: sysctl vm.unprivileged_userfaultfd=1"
            ),
            Remedy::Kernel => write!(f, "run a kernel built with CONFIG_USERFAULTFD"),
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
            "userfaultfd(2): {}, {DEVICE}: {}",
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
            device: Err(Errno(libc::EACCES)),
            user_mode_only: Ok(()),
            sysctl: Some(0),
            seccomp: false,
            container: None,
        }
    }

    /// As a kernel of today, with nothing set up.
    fn around() -> Around {
        Around {
            device: Some((0, 0o600)),
            kernel_has: true,
            user: Some("anna".to_owned()),
            groups: vec![1000],
            ..Around::default()
        }
    }

    /// With a group that has the device.
    fn set_up() -> Around {
        Around {
            device: Some((99, 0o660)),
            group: Some(99),
            ..around()
        }
    }

    fn anna(remedy: fn(String) -> Remedy) -> Remedy {
        remedy("anna".to_owned())
    }

    #[test]
    fn on_a_host_the_remedy_is_the_step_that_is_missing() {
        let of = |around: &Around| facts().remedy_in(around);
        assert_eq!(of(&around()), anna(Remedy::Setup));
        assert_eq!(of(&set_up()), anna(Remedy::Join));
        let member = Around {
            is_member: true,
            ..set_up()
        };
        assert_eq!(of(&member), Remedy::LogIn);
        // The device is another group's, or the group has no right to it.
        for device in [(98, 0o660), (99, 0o600)] {
            let device = Some(device);
            assert_eq!(of(&Around { device, ..set_up() }), anna(Remedy::Setup));
        }
        let confined = Facts {
            device: NO,
            ..facts()
        };
        assert_eq!(confined.remedy_in(&set_up()), Remedy::Confined);
        let nowhere = Facts {
            device: Err(Errno(libc::ENOENT)),
            ..facts()
        };
        let hidden = Around {
            device: None,
            ..set_up()
        };
        assert_eq!(nowhere.remedy_in(&hidden), Remedy::NoDevice);
    }

    #[test]
    fn in_a_container_the_remedy_is_an_option_of_its_engine() {
        for kind in [Container::Docker, Container::Kubernetes, Container::Other] {
            let boxed = Facts {
                container: Some(kind),
                seccomp: true,
                ..facts()
            };
            let hidden = Around {
                device: None,
                ..around()
            };
            assert_eq!(boxed.remedy_in(&hidden), Remedy::Give(kind));
            let by_cgroup = Facts {
                device: NO,
                ..boxed.clone()
            };
            assert_eq!(by_cgroup.remedy_in(&around()), Remedy::Give(kind));
            assert_eq!(boxed.remedy_in(&set_up()), Remedy::GiveGroup(kind, 99));
            assert_eq!(boxed.remedy_in(&around()), Remedy::HostSetup);
        }
        let docker = Remedy::Give(Container::Docker).to_string();
        assert!(docker.contains("--device /dev/userfaultfd"), "{docker}");
    }

    #[test]
    fn without_a_device_in_the_kernel_the_call_itself_is_needed() {
        let none = Around {
            device: None,
            kernel_has: false,
            ..around()
        };
        let old = Facts {
            device: Err(Errno(libc::ENOENT)),
            ..facts()
        };
        assert_eq!(old.remedy_in(&none), Remedy::Sysctl);
        for container in [None, Some(Container::Podman)] {
            let filtered = Facts {
                user_mode_only: NO,
                seccomp: true,
                container,
                ..old.clone()
            };
            assert_eq!(filtered.remedy_in(&none), Remedy::Filter);
        }
        let none_at_all = Facts {
            sysctl: None,
            user_mode_only: NO,
            ..old
        };
        assert_eq!(none_at_all.remedy_in(&none), Remedy::Kernel);
    }

    #[test]
    fn who_has_a_way_needs_nothing() {
        let by_call = Facts {
            syscall: Ok(()),
            ..facts()
        };
        assert_eq!(by_call.remedy(), None);
        let by_device = Facts {
            device: Ok(()),
            ..facts()
        };
        assert_eq!(by_device.way(), Some(Via::Device));
        assert_eq!(by_device.remedy(), None);
    }
}
