//! Descriptors of the process that somebody else has opened.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use deckle_uffd::{Features, Pagemap, Uffd};

use super::{Capabilities, Capability, LiveError};

/// What somebody else has opened, for a process that may not.
#[derive(Default)]
pub struct Opened {
    /// `/dev/userfaultfd`, for who may not make the call either.
    pub device: Option<OwnedFd>,
    /// Of the process in /proc: `pagemap`.
    pub pagemap: Option<OwnedFd>,
    /// `mem`.
    pub memory: Option<OwnedFd>,
}

impl Opened {
    pub(super) fn uffd(&self, caps: Capabilities) -> Result<Uffd, LiveError> {
        let user_only = !caps.has(Capability::KernelFaults);
        let uffd = match &self.device {
            Some(device) => {
                Uffd::open_from(device.as_fd(), user_only).map_err(LiveError::Handshake)?
            }
            None => {
                Uffd::open_any(user_only)
                    .map_err(LiveError::NoUserfaultfd)?
                    .0
            }
        };
        let mut features = Features::PAGEFAULT_FLAG_WP | Features::WP_UNPOPULATED;
        features = features | Features::EVENT_REMAP;
        if caps.has(Capability::Move) {
            features = features | Features::MOVE;
        }
        uffd.api(features).map_err(LiveError::Handshake)?;
        Ok(uffd)
    }

    pub(super) fn pagemap(&mut self) -> Result<Pagemap, LiveError> {
        let given = self.pagemap.take().map(|fd| Ok(Pagemap::of(fd)));
        let opened = given.unwrap_or_else(Pagemap::open_self);
        opened.map_err(LiveError::Pagemap)
    }

    pub(super) fn memory(&mut self) -> Option<File> {
        let given = self.memory.take().map(File::from);
        given.or_else(|| File::open("/proc/self/mem").ok())
    }
}
