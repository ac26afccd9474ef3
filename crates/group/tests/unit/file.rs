use super::*;
use crate::{Limits, Name, SwapKind};

#[test]
fn files_of_all_processes_together_stay_below_their_limit() {
    let name = Name::new(format!("test-file-{}", std::process::id()).as_bytes()).unwrap();
    let tunables = deckle_mm::Tunables::default();
    let group = Group::create(name, Limits::NONE, &tunables, SwapKind::Lz4).unwrap();
    Group::unlink(group.name());
    assert_eq!(group.swap_file(), None);
    let file = SwapFile {
        bytes: 1000,
        ram_percent: 50,
        encrypt: true,
        wbps: 7,
    };
    group.set_swap_file(file);
    assert_eq!(group.swap_file(), Some(file));
    let lines = [1, 2, 3, 4].map(|pid| group.join(std::process::id() + pid, 0).unwrap());
    let granted = std::thread::scope(|s| {
        let each = lines.map(|line| {
            let group = &group;
            s.spawn(move || {
                let mut granted = 0;
                for i in 0..20_000 {
                    granted += u64::from(group.charge_file(line, 7));
                    if i % 3 == 0 && granted > 0 {
                        group.uncharge_file(line, 7);
                        granted -= 1;
                    }
                }
                granted
            })
        });
        each.map(|t| t.join().unwrap()).into_iter().sum::<u64>()
    });
    assert_eq!(group.file_bytes(), granted * 7);
    assert!((900..=1000).contains(&(granted * 7)), "{granted}");
    // Who ends gives all back.
    lines.iter().for_each(|line| group.leave(*line));
    assert_eq!(group.file_bytes(), 0);
    assert!(!group.charge_file(lines[0], 7));
}

#[test]
fn writes_of_all_take_as_long_as_the_limit_says_and_no_clock_is_waited_for_long() {
    let name = Name::new(format!("test-wbps-{}", std::process::id()).as_bytes()).unwrap();
    let tunables = deckle_mm::Tunables::default();
    let group = Group::create(name, Limits::NONE, &tunables, SwapKind::Lz4).unwrap();
    Group::unlink(group.name());
    let at = |ms: u64| Duration::from_secs(1000) + Duration::from_millis(ms);
    group.note_writing(1 << 30, at(0));
    assert_eq!(group.write_wait(at(0)), Duration::ZERO, "no limit");
    group.set_swap_file(SwapFile {
        bytes: 1 << 30,
        wbps: 1 << 20,
        ..SwapFile::default()
    });
    let half = Duration::from_millis(500);
    group.note_writing(1 << 19, at(0));
    assert_eq!(group.write_wait(at(0)), half);
    group.note_writing(1 << 19, at(250));
    assert_eq!(group.write_wait(at(500)), half);
    assert_eq!(group.write_wait(at(1000)), Duration::ZERO);
    // Time that nobody used is not saved up.
    group.note_writing(1 << 19, at(5000));
    assert_eq!(group.write_wait(at(5000)), half);
    // The clock of another time namespace.
    let other = Duration::from_secs(10);
    assert_eq!(group.write_wait(other), Duration::ZERO);
    group.note_writing(1 << 19, other);
    assert_eq!(group.write_wait(other), half);
}
