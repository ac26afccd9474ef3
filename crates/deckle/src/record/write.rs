//! Writing a record while the tree runs.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use deckle_group::{Group, LineId, Process};
use serde_json::{Value, json};

use super::columns::{self, Row};
use super::{FORMAT, KEY, MARKS, SAMPLES};
use crate::fail::plain;
use crate::look::set::Now;
use crate::procfs;
use crate::replace::{self, Place};

/// How often a sample is taken at first.
const EVERY: Duration = Duration::from_millis(100);

/// Settings that one mark names.
const CHANGES: usize = 4;

/// A process as it was at the last sample.
struct Known {
    line: LineId,
    pid: u32,
    name: String,
}

/// The record that is being written.
pub struct Recorder {
    place: Place,
    file: File,
    head: String,
    samples: Vec<Row>,
    marks: Vec<(u64, String)>,
    left_out: u64,
    every: Duration,
    due: Instant,
    start: Instant,
    known: Vec<Known>,
    kills: u64,
    /// Settings at the last sample, and how often they had changed.
    settings: Option<(u32, Now)>,
    /// Pages that had been reclaimed on request.
    reclaimed: u64,
    /// Why nothing more is written.
    failed: Option<String>,
}

impl Recorder {
    /// Opens and empties `path`, and writes the head, which has the members of `about`, too.
    /// `unique` is a word that no other `deckle run` has now.
    ///
    /// # Errors
    /// If it cannot be written, or is no regular file of ours that can be replaced.
    pub fn create(path: &Path, unique: &str, mut about: Value) -> io::Result<Recorder> {
        let unfit = || {
            let why = "not a regular file of yours with one name: give the name of a new one";
            io::Error::other(why)
        };
        let file = replace::open(path)?.ok_or_else(unfit)?;
        let place = Place::of(&file, path, unique)?.ok_or_else(unfit)?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        about[KEY] = json!(FORMAT);
        about["started"] = json!(since.map_or(0, |t| t.as_secs()));
        about["columns"] = json!(columns::names());
        let start = Instant::now();
        let mut recorder = Recorder {
            place,
            file,
            head: about.to_string(),
            samples: Vec::new(),
            marks: Vec::new(),
            left_out: 0,
            every: EVERY,
            due: start,
            start,
            known: Vec::new(),
            kills: 0,
            settings: None,
            reclaimed: 0,
            failed: None,
        };
        recorder.append(&recorder.head.clone())?;
        Ok(recorder)
    }

    /// When [`work`](Recorder::work) has something to do next.
    pub fn deadline(&self) -> Option<Instant> {
        self.failed.is_none().then_some(self.due)
    }

    /// Takes a sample if it is time. A failure is no reason to disturb the program: it is told at
    /// the end.
    pub fn work(&mut self, group: &Group) {
        let now = Instant::now();
        if self.failed.is_some() || now < self.due {
            return;
        }
        self.due = now + self.every;
        if let Err(e) = self.sample(group) {
            let (at, why) = (self.start.elapsed().as_secs_f64(), plain(&e));
            self.failed = Some(format!("ends after {at:.1} s: {why}"));
        }
    }

    /// The last sample, and the mark of the end.
    ///
    /// # Errors
    /// Why it does not go on to the end.
    pub fn end(mut self, group: &Group, status: i32, signal: Option<i32>) -> Result<(), String> {
        if let Some(why) = self.failed {
            return Err(why);
        }
        let mark = json!({
            "mark": "end", "t_ms": self.now(), "exit_status": status, "signal": signal,
            "marks_left_out": self.left_out,
        });
        let done = (self.sample(group)).and_then(|()| self.append(&mark.to_string()));
        done.map_err(|e| plain(&e))
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    fn sample(&mut self, group: &Group) -> io::Result<()> {
        let t = self.now();
        let processes: Vec<Process> = group.processes().collect();
        let mut news = self.news(&processes, t);
        // Who was killed is gone before anybody looks: that somebody was is counted.
        let kills = group.oom_kills();
        if kills > self.kills {
            let how_many = kills - self.kills;
            news.push(json!({ "mark": "kill", "t_ms": t, "processes": how_many }).to_string());
            self.kills = kills;
        }
        news.extend(self.steered(group, t));
        for mark in news {
            if self.marks.len() < MARKS {
                self.append(&mark)?;
                self.marks.push((t, mark));
            } else {
                self.left_out += 1;
            }
        }
        let row = columns::sample(group, processes.len(), t);
        self.samples.push(row);
        if self.samples.len() < SAMPLES {
            return self.append(&line(&row));
        }
        self.samples = (self.samples.chunks(2))
            .map(|two| columns::merge(&two[0], &two[two.len() - 1]))
            .collect();
        self.every *= 2;
        self.rewrite()
    }

    /// What has become of the processes since the last sample.
    fn news(&mut self, processes: &[Process], t: u64) -> Vec<String> {
        let mut news = Vec::new();
        let mut say = |mark: &str, pid: u32, what: &str| {
            let mark = json!({ "mark": mark, "t_ms": t, "pid": pid, "what": what });
            news.push(mark.to_string());
        };
        let mut known = std::mem::take(&mut self.known);
        known.retain(|k| {
            let lives = processes.iter().any(|p| p.line == k.line);
            // Who has executed a program has a new line, and is told below.
            if !lives && !processes.iter().any(|p| p.pid == k.pid) {
                say("exit", k.pid, &k.name);
            }
            lives
        });
        for p in processes {
            if !known.iter().any(|k| k.line == p.line) {
                let (line, pid, name) = (p.line, p.pid, procfs::comm(p.pid));
                say("start", pid, &name);
                known.push(Known { line, pid, name });
            }
        }
        self.known = known;
        news
    }

    /// What users have changed or asked for since the last sample.
    fn steered(&mut self, group: &Group, t: u64) -> Vec<String> {
        let mut news = Vec::new();
        let mut say = |mark: &str, what: String| {
            news.push(json!({ "mark": mark, "t_ms": t, "what": what }).to_string());
        };
        // Read first: what changes meanwhile is looked at again by the next sample.
        let changes = group.changes();
        if self.settings.is_none_or(|(before, _)| before != changes)
            && let Some(now) = Now::of(group)
        {
            let changed = self.settings.map(|(_, before)| now.changed(&before));
            if let Some(mut changed) = changed.filter(|changed| !changed.is_empty()) {
                let more = changed.len().saturating_sub(CHANGES);
                changed.truncate(CHANGES);
                if more > 0 {
                    changed.push(format!("and {more} more"));
                }
                say("set", changed.join(", "));
            }
            self.settings = Some((changes, now));
        }
        let reclaimed = group.reclaimed_on_request();
        if reclaimed > self.reclaimed {
            let pages = reclaimed - self.reclaimed;
            let bytes = pages.saturating_mul(deckle_mm::PAGE_SIZE as u64);
            say("reclaim", crate::size::show(bytes));
            self.reclaimed = reclaimed;
        }
        news
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        self.file.write_all(format!("{line}\n").as_bytes())
    }

    /// A whole new file in the place of the old one.
    fn rewrite(&mut self) -> io::Result<()> {
        let mut text = format!("{}\n", self.head);
        let mut marks = self.marks.iter().peekable();
        for row in &self.samples {
            while let Some((_, mark)) = marks.next_if(|(t, _)| *t <= row[0]) {
                text += mark;
                text.push('\n');
            }
            text += &line(row);
            text.push('\n');
        }
        self.file = self.place.put(&self.file, text.as_bytes())?;
        Ok(())
    }
}

fn line(row: &Row) -> String {
    json!(row.as_slice()).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::Record;
    use super::*;
    use deckle_group::{Gauges, Limits, Name, SwapKind};
    use deckle_mm::Tunables;
    use std::fs;

    fn group(name: &str) -> Group {
        let name = Name::new(name.as_bytes()).unwrap();
        let group = Group::create(name, Limits::NONE, &Tunables::default(), SwapKind::Lz4);
        Group::unlink(name);
        group.unwrap()
    }

    #[test]
    fn a_long_record_is_bounded_and_keeps_its_peaks() {
        let group = group("test-record-bounded");
        let path = std::env::temp_dir().join(format!("deckle-record-{}", std::process::id()));
        let mut recorder = Recorder::create(&path, "test", json!({ "command": ["a"] })).unwrap();
        let mut most = 0;
        for n in 0..SAMPLES as u64 * 3 {
            recorder.sample(&group).unwrap();
            // A peak in one sample, where the next thinning has to keep it.
            if n == 1001 {
                recorder.samples.last_mut().unwrap()[1] = 1 << 30;
            }
            most = most.max(recorder.samples.len());
        }
        assert!(most < SAMPLES, "{most}");
        // Full once, and then with every half of it.
        assert_eq!(recorder.every, EVERY * 32);
        recorder.end(&group, 3, None).unwrap();
        let size = fs::metadata(&path).unwrap().len();
        assert!(size < 2 << 20, "{size}");
        let record = Record::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(record.samples.len() <= SAMPLES && record.samples.len() > SAMPLES / 4);
        let memory = record.column("memory_bytes").unwrap();
        assert_eq!(memory.into_iter().max(), Some(1 << 30));
        assert_eq!(record.marks.last().unwrap().what, "exit status 3");
    }

    /// One process joins at each sample and one leaves, called by what takes most room in JSON, and
    /// each number is the largest that there is.
    #[test]
    fn the_record_of_the_worst_hour_takes_less_than_10_mib() {
        const HOUR: Duration = Duration::from_secs(3600);
        let group = group("test-record-hour");
        let path = std::env::temp_dir().join(format!("deckle-hour-{}", std::process::id()));
        let about = json!({ "command": super::super::command(&vec!["\u{1}".repeat(1 << 20); 9]) });
        let mut recorder = Recorder::create(&path, "test", about).unwrap();
        // As long ago as its numbers have digits.
        recorder.start -= HOUR;
        let stats = deckle_mm::Stats::new();
        for item in deckle_mm::Item::ALL {
            stats.add(*item, i64::MAX as u64);
        }
        let most = Gauges {
            resident: i64::MAX as u64,
            inactive: i64::MAX as u64,
            swapped: i64::MAX as u64,
            stored_pages: i64::MAX as u64,
            file_pages: i64::MAX as u64,
            unmanaged_anon: i64::MAX as u64,
            ..Gauges::default()
        };
        let mut worst = 0;
        let named = std::thread::Builder::new().name("\u{1}".repeat(15));
        let hour = named.spawn(move || {
            let me = fs::read_link("/proc/thread-self").unwrap();
            let me = me.file_name().unwrap().to_str().unwrap().parse().unwrap();
            let mut clock = Duration::ZERO;
            while clock < HOUR {
                let line = group.join(me, 0).unwrap();
                group.publish(line, &most, &stats);
                recorder.sample(&group).unwrap();
                group.leave(line);
                worst = worst.max(recorder.file.metadata().unwrap().len());
                clock += recorder.every;
            }
            recorder.end(&group, 3, None).unwrap();
            worst
        });
        let worst = hour.unwrap().join().unwrap();
        let record = Record::read(&path);
        fs::remove_file(&path).unwrap();
        let record = record.unwrap();
        eprintln!("{worst} bytes, {} samples", record.samples.len());
        assert!(worst <= 10 << 20, "{worst}");
        // It is the worst one: all samples, all marks, and numbers of twenty digits.
        assert!(record.marks.len() > MARKS && record.samples.len() > SAMPLES / 2);
        assert!(worst > 3 << 20, "{worst}");
    }

    #[test]
    fn what_cannot_be_replaced_is_refused() {
        let refused = Recorder::create(Path::new("/dev/null"), "test", json!({}));
        let Err(error) = refused else {
            panic!("recorded in /dev/null");
        };
        assert!(error.to_string().contains("regular file"), "{error}");
    }
}
