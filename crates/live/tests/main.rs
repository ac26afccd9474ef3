//! The platform and the pager on real memory, each case in a process of its own.

mod collapse;
mod common;
mod family;
#[path = "common/inside.rs"]
mod inside;
mod open;
mod open_random;
mod open_unseen;
mod pageout;
mod pager;
mod platform_huge;
mod platform_races;
mod platform_small;
mod platform_zero;
#[path = "common/service.rs"]
mod service;
#[path = "../../uffd/tests/common/skipped.rs"]
mod skipped;
mod split;
#[path = "common/trim.rs"]
mod trim;
mod unread;
