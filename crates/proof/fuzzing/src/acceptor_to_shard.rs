//! From the acceptor to the shard: packets on several connections, and what comes between them.
//!
//! An input is a world (its first two bytes) and what happens in it, one operation after the other
//! (`ops`): connections come, also with the client id of another one and under another name, send
//! packets, sound, mangled or made up, in pieces, read or do not, are cut; mail, disks and time go
//! on. The bytes take the way that they take in the server: first packet, authentication, shard.
//!
//! It panics when the core does, and when one of these does not hold (`peer`, `world`):
//!
//! - What a client is sent are whole packets of its version, none larger than it takes.
//! - An answer is for something that was asked for on that connection, and there is one.
//! - A message is delivered to who may read it by the rules in force, has subscribed to it, and as
//!   somebody who may write it has published it.
//! - The window of a client is never exceeded, and no packet id in use is used again.
//! - Once all have gone and their times are over, nothing is left of them: no session, subscription
//!   or interest, and not a byte in the ledger of memory. A newcomer is served.

mod book;
mod ops;
mod peer;
mod seeds;
mod world;

pub use seeds::seeds;

use ops::Input;
use world::World;

/// Operations after which an input is over, however long it is.
const OPS_MAX: usize = 400;

pub fn acceptor_to_shard(input: &[u8]) {
    let mut input = Input(input);
    let (Some(kind), Some(limits)) = (input.byte(), input.byte()) else { return };
    let mut world = World::new(kind, limits);
    for _ in 0..OPS_MAX {
        if ops::step(&mut world, &mut input).is_none() {
            break;
        }
    }
    world.end();
}
