//! What matters where frames are scarce: compaction, capture, and blocks that come back whole.

mod capture;
mod compact;
mod marks;
mod shatter;

use super::common;
