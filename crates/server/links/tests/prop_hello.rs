//! The handshake of nodes, for any node and any bytes.

use links::hello::{Agreed, Greeting, HELLO_BYTES_MAX, Hello, HelloError, Secret};
use proptest::collection::vec;
use proptest::prelude::*;

fn hellos() -> impl Strategy<Value = Hello> {
    let versions = (0_u8..=255, 0_u8..=255).prop_map(|(a, b)| a.min(b)..=a.max(b));
    let name = "[A-Za-z0-9._-]{1,64}";
    (versions, any::<[u8; 16]>(), any::<u8>(), any::<u64>(), name).prop_map(
        |(versions, cluster, lane, session, name)| Hello { versions, cluster, lane, session, name },
    )
}

/// Two nodes that can have a link.
fn pairs() -> impl Strategy<Value = (Hello, Hello)> {
    (hellos(), hellos()).prop_map(|(one, other)| {
        let versions = one.versions.clone();
        let (cluster, lane) = (one.cluster, one.lane);
        (one, Hello { versions, cluster, lane, ..other })
    })
}

type Ended = Result<Option<Agreed>, HelloError>;

/// Connector and acceptor, over a connection that gives pieces of `piece` bytes, in which `change`
/// changes the bytes at their index.
fn converse(
    (connector, acceptor): (Hello, Hello),
    piece: usize,
    mut change: impl FnMut(usize, &mut u8),
) -> [Ended; 2] {
    let session = acceptor.session;
    let secret = || Secret::new(*b"secret");
    let mut greetings = [
        Greeting::connect(connector, secret(), [7; 32]),
        Greeting::accept(acceptor, secret(), [7; 32]),
    ];
    let mut ended: [Ended; 2] = [Ok(None), Ok(None)];
    let (mut at, mut index) = (0, 0);
    loop {
        let mut output = greetings[at].take_output();
        if output.is_empty() {
            return ended;
        }
        for byte in &mut output {
            change(index, byte);
            index += 1;
        }
        at = 1 - at;
        for mut piece in output.chunks(piece) {
            let result = greetings[at].on_bytes(&mut piece, &mut |_| Ok(session));
            if !matches!(result, Ok(None)) {
                ended[at] = result;
            }
            if ended[at].is_err() {
                return ended;
            }
        }
    }
}

proptest! {
    #[test]
    fn a_hello_is_read_as_it_was_written(hello in hellos(), later in vec(any::<u8>(), 0..99)) {
        let bytes = hello.encode();
        prop_assert!(bytes.len() <= HELLO_BYTES_MAX + 10);
        prop_assert_eq!(Hello::decode(&[&bytes[10..], &later].concat()), Ok(hello));
    }

    #[test]
    fn two_nodes_of_a_cluster_agree(pair in pairs(), piece in 1_usize..200) {
        let [connector, acceptor] = converse(pair.clone(), piece, |_, _| ());
        let version = *pair.0.versions.end();
        let (one, other) = pair;
        let session = other.session;
        let agreed = Agreed { peer: other, session: one.session, version };
        prop_assert_eq!(connector, Ok(Some(agreed)));
        prop_assert_eq!(acceptor, Ok(Some(Agreed { peer: one, session, version })));
    }

    /// The side whose bytes are changed does not succeed, nor does the one that gets them. Only
    /// the last proof is of no more use to the acceptor.
    #[test]
    fn a_changed_bit_anywhere_is_noticed(
        pair in pairs(),
        at in any::<prop::sample::Index>(),
        bit in 0_u8..8,
    ) {
        let hellos = pair.0.encode().len() + pair.1.encode().len();
        let at = at.index(hellos + 2 * 32);
        let [connector, acceptor] = converse(pair, 50, |index, byte| {
            *byte ^= if index == at { 1 << bit } else { 0 };
        });
        prop_assert!(!matches!(connector, Ok(Some(_))), "{at}");
        prop_assert!(at >= hellos + 32 || !matches!(acceptor, Ok(Some(_))), "{at}");
    }

    /// Nor can any bytes make it store more than a hello.
    #[test]
    fn no_bytes_are_a_node(bytes in vec(any::<u8>(), 0..2000), has_magic in any::<bool>()) {
        let magic: &[u8] = if has_magic { b"quelinks\x20\0" } else { b"" };
        let own = Hello {
            versions: 0..=255, cluster: [0; 16], lane: 0, session: 1, name: "n2".to_owned(),
        };
        let mut greeting = Greeting::accept(own, Secret::new(*b"secret"), [7; 32]);
        let input = [magic, &bytes].concat();
        let result = greeting.on_bytes(&mut &input[..], &mut |_| Ok(1));
        prop_assert!(!matches!(result, Ok(Some(_))));
    }
}
