//! The handshake of two nodes: an input is what a peer sends, to both sides. Where it is a hello, a
//! peer that has the secret goes on from there.

use links::hello::{Greeting, HELLO_BYTES_MAX, Hello, HelloError, Secret};

pub fn link_hello(input: &[u8]) {
    hello(input);
    for greeting in [connector(own()), acceptor()] {
        no_proof(greeting, input);
    }
    let Some((head, body)) = input.split_at_checked(HEAD_BYTES) else { return };
    let Ok(peer) = Hello::decode(body) else { return };
    if head.starts_with(b"quelinks") && body.len() <= HELLO_BYTES_MAX {
        agree(peer);
    }
}

/// A hello has one encoding, but for what later versions may add.
fn hello(input: &[u8]) {
    let Ok(hello) = Hello::decode(input) else { return };
    let again = hello.encode();
    assert!(input.starts_with(&again[HEAD_BYTES..]));
    for length in 0..again.len() - HEAD_BYTES {
        assert!(Hello::decode(&input[..length]).is_err(), "a part of a hello is none");
    }
}

/// Without the secret there is no agreement, however the bytes are cut.
fn no_proof(mut greeting: Greeting, input: &[u8]) {
    let mut pieces = input.chunks(1 + input.len() / 3);
    let found = pieces.try_for_each(|mut piece| {
        let agreed = greeting.on_bytes(&mut piece, &mut |_| Ok(2))?;
        assert_eq!(agreed, None, "it has no proof");
        assert!(piece.is_empty(), "all is taken");
        Ok::<(), HelloError>(())
    });
    drop(found);
}

fn agree(peer: Hello) {
    let can_agree = peer.versions.contains(&VERSION) && peer.cluster == own().cluster;
    let (mut connector, mut acceptor) = (connector(peer.clone()), acceptor());
    let pass = |from: &mut Greeting, to: &mut Greeting| {
        to.on_bytes(&mut &from.take_output()[..], &mut |_| Ok(2))
    };
    let admitted = pass(&mut connector, &mut acceptor);
    assert_eq!(admitted.is_ok(), can_agree, "{peer:?}");
    if can_agree {
        assert_eq!(pass(&mut acceptor, &mut connector), Ok(None));
        let agreed = pass(&mut connector, &mut acceptor).expect("it has the secret");
        let agreed = agreed.expect("it is the proof");
        assert_eq!((agreed.peer, agreed.session, agreed.version), (peer, 2, VERSION));
        assert!(pass(&mut acceptor, &mut connector).is_ok_and(|agreed| agreed.is_some()));
    }
}

fn own() -> Hello {
    let (cluster, name) = (*b"0123456789abcdef", "node-2".to_owned());
    Hello { versions: VERSION..=VERSION, cluster, lane: 3, session: 1, name }
}

fn connector(own: Hello) -> Greeting {
    Greeting::connect(own, Secret::new(*b"secret"), [7; 32])
}

fn acceptor() -> Greeting {
    Greeting::accept(own(), Secret::new(*b"secret"), [7; 32])
}

/// Hellos of a node that can agree and of others, and one with a proof.
pub fn seeds() -> Vec<Vec<u8>> {
    let peer = Hello { name: "node-1".to_owned(), session: 9, ..own() };
    let others = [
        peer.clone(),
        Hello { versions: 0..=255, ..peer.clone() },
        Hello { versions: 2..=9, ..peer.clone() },
        Hello { cluster: [0; 16], ..peer.clone() },
        Hello { name: "n".repeat(64), lane: 255, session: u64::MAX, ..peer.clone() },
    ];
    let with_proof = [&peer.encode()[..], &[5; 32]].concat();
    let body = peer.encode().split_off(HEAD_BYTES);
    others.iter().map(Hello::encode).chain([with_proof, body]).collect()
}

const VERSION: u8 = 1;
/// Of what precedes the fields.
const HEAD_BYTES: usize = 10;
