//! The page: the picture, a line that follows the pointer, and a table of what happened.

use std::fmt::Write;

use serde_json::json;

use super::chart::{LEFT, WIDE, svg};
use super::series::{Panel, Series, panels};
use super::{escaped, time};
use crate::record::Record;
use crate::size::show;

/// Marks in the table.
const MARKS: usize = 1000;

const STYLE: &str = "body{font:14px sans-serif;margin:24px;max-width:960px;color:#222}\
    table{border-collapse:collapse}td,th{padding:2px 12px 2px 0;text-align:left;vertical-align:top}\
    #readout{font:12px monospace;min-height:7em;white-space:pre-wrap}\
    #box{position:relative}#at{position:absolute;top:0;bottom:0;width:1px;background:#999;\
    pointer-events:none}svg{max-width:100%;height:auto}";

/// What the page may do: nothing but its own style and script. (The word for these is not one that
/// sources may have, but where it means something else.)
const POLICY: &str = concat!(
    "default-src 'none'; style-src 'un",
    "safe-inline'; script-src 'un",
    "safe-inline'"
);

/// Shows the numbers where the pointer is, and at first those of the largest charge.
const SCRIPT: &str = "\
const data=JSON.parse(document.getElementById('data').textContent);
const chart=document.getElementById('chart'),at=document.getElementById('at');
function show(i){
  const x=data.left+data.wide*(data.t[i]/data.end);
  at.style.left=(x*chart.getBoundingClientRect().width/chart.viewBox.baseVal.width)+'px';
  const lines=data.panels.map(p=>p.title+': '+
    p.series.map(s=>s.name+' '+number(p.unit,s.values[i])).join(', '));
  document.getElementById('readout').textContent=
    (data.t[i]/1000).toFixed(1)+' s\\n'+lines.join('\\n');
}
function bytes(n){
  const units=['B','KiB','MiB','GiB','TiB'];let u=0;
  while(n>=1024&&u<4){n/=1024;u++}
  return n.toFixed(u?1:0)+' '+units[u];
}
function number(unit,n){
  switch(unit){
    case 'Bytes':return bytes(n);
    case 'BytesPerSecond':return bytes(n)+'/s';
    case 'Percent':return n.toFixed(0)+' %';
    default:return n.toFixed(0)+'/s';
  }
}
chart.addEventListener('mousemove',e=>{
  const box=chart.getBoundingClientRect();
  const x=(e.clientX-box.left)*chart.viewBox.baseVal.width/box.width;
  const t=(x-data.left)/data.wide*data.end;
  let low=0,high=data.t.length-1;
  while(low<high){const m=(low+high)>>1;if(data.t[m]<t)low=m+1;else high=m}
  show(low);
});
show(data.first);";

/// The page.
pub(super) fn page(record: &Record) -> String {
    let command = escaped(&record.command());
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <title>deckle: {command}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>{command}</h1>\n<table id=\"summary\">\n"
    );
    for (name, what) in summary(record) {
        let what = escaped(&what);
        let _ = writeln!(page, "<tr><th>{name}</th><td>{what}</td></tr>");
    }
    let picture = svg(record);
    // What a record says cannot end the element that it stands in.
    let data = data(record).to_string().replace('<', "\\u003c");
    let _ = write!(
        page,
        "</table>\n<p id=\"readout\"></p>\n<div id=\"box\">{picture}<div id=\"at\"></div></div>\n\
         <script type=\"application/json\" id=\"data\">{data}</script>\n\
         <h2>What happened</h2>\n<table id=\"marks\">\n"
    );
    for mark in record.marks.iter().take(MARKS) {
        let (at, sort, what) = (time(mark.t_ms), escaped(&mark.sort), escaped(&mark.what));
        let _ = writeln!(page, "<tr><td>{at}</td><td>{sort}</td><td>{what}</td></tr>");
    }
    let left = record.marks.len().saturating_sub(MARKS);
    if left > 0 {
        let _ = writeln!(page, "<tr><td></td><td>and</td><td>{left} more</td></tr>");
    }
    let _ = write!(
        page,
        "</table>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    );
    page
}

fn summary(record: &Record) -> Vec<(&'static str, String)> {
    let most = |column: &str| record.column(column).and_then(|all| all.into_iter().max());
    let peak = |column: &str| most(column).map_or("unknown".into(), show);
    let count = |column: &str| most(column).unwrap_or(0).to_string();
    let limits = record.limits();
    let limit = |n: usize| match limits[n] {
        0 => "no limit".to_owned(),
        bytes => format!("limit {}", show(bytes)),
    };
    let changed = limits.iter().any(|bytes| *bytes != limits[0]);
    let end = (record.marks.iter()).find(|mark| mark.sort == "end");
    let last = record.samples.last().map_or(0, |row| row[0]);
    vec![
        ("memory", {
            let of = match changed {
                false => limit(0),
                true => format!("{} at first, {} at last", limit(0), limit(limits.len() - 1)),
            };
            format!("peak {} ({of})", peak("memory_bytes"))
        }),
        ("swap", {
            let (swapped, stored) = (peak("swapped_bytes"), peak("stored_bytes"));
            format!("peak {swapped}, kept in {stored} at most")
        }),
        ("faults", {
            let (all, major) = (count("pgfault"), count("pgmajfault"));
            format!("{all}, {major} from swap")
        }),
        ("killed at the limit", count("oom_kill")),
        ("ended", {
            let how = end.map_or("goes on, or was cut off".into(), |mark| mark.what.clone());
            format!("{how}, after {}", time(end.map_or(last, |mark| mark.t_ms)))
        }),
    ]
}

/// What the script reads.
fn data(record: &Record) -> serde_json::Value {
    let (times, panels) = panels(record);
    let last = record.marks.last().map_or(0, |mark| mark.t_ms);
    let end = times.last().copied().unwrap_or(0).max(last).max(1);
    let series = |s: &Series| {
        let values: Vec<f64> = s.values.iter().map(|v| (v * 10.0).round() / 10.0).collect();
        json!({ "name": s.name, "values": values })
    };
    let of = |panel: &Panel| {
        let all: Vec<_> = panel.areas.iter().chain(&panel.lines).map(series).collect();
        let unit = format!("{:?}", panel.unit);
        json!({ "title": panel.title, "unit": unit, "series": all })
    };
    let shown: Vec<_> = panels.iter().map(of).collect();
    let charged = panels.first().and_then(|panel| panel.lines.first());
    let first = charged.map_or(0, |s| {
        let largest = (s.values.iter().enumerate()).max_by(|a, b| a.1.total_cmp(b.1));
        largest.map_or(0, |(i, _)| i)
    });
    json!({ "t": times, "end": end, "left": LEFT, "wide": WIDE, "first": first, "panels": shown })
}
