//! What is said about a build with capture and without.

use crate::model::build::BuildRow;
use crate::table::Column::{self, Left, Right};
use crate::table::table;

const BUILDS: [Column<BuildRow>; 7] = [
    Left("capture", |r| if r.capture { "on" } else { "off" }.into()),
    Right("faults", |r| r.faults.to_string()),
    Right("major", |r| r.major_faults.to_string()),
    Right("stored", |r| r.stored.to_string()),
    Right("read back", |r| r.read_back.to_string()),
    Right("huge", |r| r.huge.to_string()),
    Right("captured", |r| r.captured.to_string()),
];

pub(super) fn text(text: &mut String, rows: &[BuildRow]) {
    if rows.is_empty() {
        return;
    }
    text.push_str(
        "\na build in RAM of 80 % of what it uses, alone on the machine (pages of a compiler):\n",
    );
    table(text, 0, &BUILDS, rows, |_| None);
}
