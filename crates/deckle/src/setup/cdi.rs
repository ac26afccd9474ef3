//! The file by which container engines give a container the device, and this deckle.

use std::path::Path;

use serde_json::{Value, json};

/// The kind of the device, as in `--device deckle.dev/pager=all`.
pub const KIND: &str = "deckle.dev/pager";

/// The file, for the program and the folder of its libraries.
pub fn file(program: &Path, libraries: &Path) -> Value {
    let mount = |from: &Path, to: &str| {
        json!({
            "hostPath": from,
            "containerPath": to,
            "options": ["bind", "ro", "nosuid", "nodev"],
        })
    };
    json!({
        // The oldest that has all this: an engine refuses what is newer than itself.
        "cdiVersion": "0.3.0",
        "kind": KIND,
        "devices": [{
            "name": "all",
            "containerEdits": {
                // Any user of the container: the group's number on the host says nothing there.
                "deviceNodes": [
                    { "path": crate::access::DEVICE, "permissions": "rw", "fileMode": 0o666 },
                ],
                "mounts": [
                    mount(program, "/usr/bin/deckle"),
                    mount(libraries, "/usr/lib/deckle"),
                ],
            },
        }],
    })
}
