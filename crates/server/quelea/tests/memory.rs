//! Above the limit of memory the broker takes on nothing new.

use conformance::broker::{PLAIN, Quelea};
use conformance::{Connect, Peer, Version};

const SUCCESS: u8 = 0x00;
const SERVER_BUSY: u8 = 0x89;

/// More tries than the broker needs to look at its memory for the first time.
const TRIES_MAX: usize = 100_000;

#[test]
fn connections_are_refused_when_memory_is_short() {
    let quelea = Quelea::start(&format!("{PLAIN}\n[limits]\nmemory_bytes_max = \"1MiB\"\n"));
    let address = quelea.address("tcp");
    let mut answers = (0..TRIES_MAX).map(|_| {
        let mut peer = Peer::open_at(address, Version::V5);
        peer.send(Connect::new(Version::V5).encoded());
        peer.recv().connack(Version::V5).reason
    });
    let refused = answers.find(|reason| *reason != SUCCESS);
    assert_eq!(refused, Some(SERVER_BUSY));
}
