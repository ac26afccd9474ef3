//! Packets and the descriptors in them.

use std::time::Duration;

use deckle_sys::poll::is_ready;
use deckle_sys::socket::{self, Address, receive, send};
use deckle_sys::{Errno, file};

#[test]
fn a_packet_brings_its_descriptors_and_its_sender() {
    let [a, b] = socket::pair().unwrap();
    socket::tell_senders(&b);
    let mut room = [0; 16];
    assert_eq!(receive(&b, &mut room).unwrap_err(), Errno(libc::EAGAIN));
    let file = file::in_memory(c"sent").unwrap();
    file.set_len(42).unwrap();
    send(&a, &[b"he", b"llo"], &[file.raw(), a.raw()]).unwrap();
    drop(file);
    let got = receive(&b, &mut room).unwrap();
    assert_eq!(got.packet, b"hello");
    let [Some(file), Some(other), None, ..] = got.fds else {
        panic!("two descriptors were sent");
    };
    assert_eq!(file::stat_of(&file).unwrap().st_size, 42);
    // Its number here is another, and it is the same end.
    send(&other, &[b"x"], &[]).unwrap();
    drop((a, other));
    assert_eq!(receive(&b, &mut room).unwrap().packet, b"x");
    // Children that other tests fork have the other end, too, until they end.
    assert!(is_ready(b.raw(), Duration::from_secs(60)));
    assert_eq!(receive(&b, &mut room).unwrap().packet, b"");
}

#[test]
fn an_address_is_cut_at_its_longest() {
    let at = Address::new([b"/tmp/", &[b'x'; 200]]);
    assert_eq!(at.path().to_bytes().len(), 107);
}
