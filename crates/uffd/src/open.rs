//! Opening a userfaultfd, the feature handshake, ownership of the descriptor.

use core::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use crate::error::Errno;
use crate::flags::{Features, Ioctls};
use crate::sys;

/// An open userfaultfd. It stands for the address space of the process that opened it (or, if it
/// came with a fork event, of that child) as long as any duplicate is open anywhere.
///
/// Dropping the last descriptor ends every registration, and memory whose bytes are elsewhere at
/// that moment then reads as zeros, without an error. Whoever evicts keeps a duplicate in a safe
/// place.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
}

/// The two ways to a userfaultfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Via {
    /// `userfaultfd(2)`: any user for user-mode-only descriptors; for others CAP_SYS_PTRACE or
    /// `vm.unprivileged_userfaultfd=1`. Commonly blocked by container profiles.
    Syscall,
    /// `/dev/userfaultfd` (Linux 6.1 on): the permissions of the file decide alone.
    Device,
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Syscall => "userfaultfd(2)",
            Self::Device => "/dev/userfaultfd",
        })
    }
}

/// Neither way is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenError {
    /// What the system call said.
    pub syscall: Errno,
    /// What opening or asking the device said.
    pub device: Errno,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no userfaultfd: {}: {}; {}: {}",
            Via::Syscall,
            self.syscall,
            Via::Device,
            self.device
        )
    }
}

impl core::error::Error for OpenError {}

/// Which ways are open to this process, both tried; see [`Uffd::routes`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Routes {
    /// The system call.
    pub syscall: Result<(), Errno>,
    /// The device.
    pub device: Result<(), Errno>,
}

/// The kernel's answer to the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Api {
    /// Everything this kernel offers, not only what was asked for.
    pub offered: Features,
    /// Operations on the descriptor itself.
    pub ioctls: Ioctls,
}

impl Uffd {
    /// Opens a descriptor by the given way, non-blocking and close-on-exec.
    ///
    /// With `user_mode_only` faults that the kernel takes on behalf of a system call are not
    /// delivered: `read(2)` into missing memory fails with `EFAULT`. Such a descriptor needs no
    /// privilege when opened by system call.
    ///
    /// The descriptor is of no use before [`api`](Self::api).
    ///
    /// # Errors
    /// The kernel's refusal; on kernels without the device `ENOENT`.
    pub fn open(via: Via, user_mode_only: bool) -> Result<Self, Errno> {
        let mut flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        if user_mode_only {
            flags |= sys::UFFD_USER_MODE_ONLY;
        }
        let fd = match via {
            // SAFETY: the call takes one integer and touches no memory.
            Via::Syscall => unsafe { libc::syscall(libc::SYS_userfaultfd, flags) as RawFd },
            Via::Device => {
                let path = c"/dev/userfaultfd".as_ptr();
                // SAFETY: path is a valid C string.
                let dev = unsafe { libc::open(path, libc::O_RDWR | libc::O_CLOEXEC) };
                if dev < 0 {
                    return Err(Errno::last());
                }
                // SAFETY: dev was just opened and has no other owner.
                let dev = unsafe { OwnedFd::from_raw_fd(dev) };
                return Self::open_from(dev.as_fd(), user_mode_only);
            }
        };
        Self::own(fd)
    }

    /// Opens a descriptor for the calling process's memory through an open `/dev/userfaultfd`,
    /// which somebody else may have opened: having it is permission enough.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn open_from(device: BorrowedFd<'_>, user_mode_only: bool) -> Result<Self, Errno> {
        let mut flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        if user_mode_only {
            flags |= sys::UFFD_USER_MODE_ONLY;
        }
        // SAFETY: this request takes an integer, not a pointer.
        Self::own(unsafe { libc::ioctl(device.as_raw_fd(), sys::USERFAULTFD_IOC_NEW as _, flags) })
    }

    /// The result of a call that opens.
    fn own(fd: RawFd) -> Result<Self, Errno> {
        if fd < 0 {
            return Err(Errno::last());
        }
        // SAFETY: fd was just returned by the kernel and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd })
    }

    /// Opens by system call, else by the device, and says which it was.
    ///
    /// The second way is tried whatever the first one's error: container profiles answer with
    /// `EPERM` as well as `ENOSYS`.
    ///
    /// # Errors
    /// Both refusals.
    pub fn open_any(user_mode_only: bool) -> Result<(Self, Via), OpenError> {
        let syscall = match Self::open(Via::Syscall, user_mode_only) {
            Ok(uffd) => return Ok((uffd, Via::Syscall)),
            Err(e) => e,
        };
        match Self::open(Via::Device, user_mode_only) {
            Ok(uffd) => Ok((uffd, Via::Device)),
            Err(device) => Err(OpenError { syscall, device }),
        }
    }

    /// Tries both ways on throw-away descriptors.
    pub fn routes(user_mode_only: bool) -> Routes {
        Routes {
            syscall: Self::open(Via::Syscall, user_mode_only).map(drop),
            device: Self::open(Via::Device, user_mode_only).map(drop),
        }
    }

    /// What the kernel offers, asked on a throw-away descriptor with no feature requested. The
    /// handshake is once for each descriptor, hence the throw-away.
    ///
    /// # Errors
    /// The kernel's refusal to open or to answer.
    pub fn probe(via: Via, user_mode_only: bool) -> Result<Features, Errno> {
        Ok(Self::open(via, user_mode_only)?
            .api(Features::empty())?
            .offered)
    }

    /// The handshake: enables `features`. Once for each descriptor.
    ///
    /// # Errors
    /// `EINVAL`: the kernel does not know one of the bits, or the handshake has been made
    /// (either way nothing is enabled). `EPERM`: [`Features::EVENT_FORK`] without
    /// CAP_SYS_PTRACE.
    pub fn api(&self, features: Features) -> Result<Api, Errno> {
        let mut arg = sys::UffdioApi {
            api: sys::UFFD_API,
            features: features.bits(),
            ioctls: 0,
        };
        // SAFETY: arg is the structure that this request reads and writes.
        unsafe { self.ioctl(sys::UFFDIO_API, &mut arg) }?;
        Ok(Api {
            offered: Features::from_bits(arg.features),
            ioctls: Ioctls::from_bits(arg.ioctls),
        })
    }

    /// Wraps a descriptor that was received from elsewhere (over a socket, by duplication).
    ///
    /// # Safety
    /// `fd` is a userfaultfd. Of any other kind, what is read from it would be taken for
    /// messages, and numbers in them for descriptors to own.
    pub unsafe fn from_owned_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Issues a request on the descriptor.
    ///
    /// # Safety
    /// `arg` is the structure that `request` reads and writes, and the effect of the request on
    /// memory is one the caller may have.
    pub(crate) unsafe fn ioctl<T>(&self, request: libc::c_ulong, arg: &mut T) -> Result<(), Errno> {
        // SAFETY: arg is a valid structure for this request, by the caller's promise.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), request as _, &raw mut *arg) } {
            0 => Ok(()),
            _ => Err(Errno::last()),
        }
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Uffd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl IntoRawFd for Uffd {
    fn into_raw_fd(self) -> RawFd {
        self.fd.into_raw_fd()
    }
}

impl From<Uffd> for OwnedFd {
    fn from(uffd: Uffd) -> Self {
        uffd.fd
    }
}

impl FromRawFd for Uffd {
    /// # Safety
    /// As [`Uffd::from_owned_fd`], and `fd` is open and has no other owner.
    unsafe fn from_raw_fd(fd: RawFd) -> Self {
        // SAFETY: open and without another owner, by the caller's promise.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Self { fd }
    }
}
