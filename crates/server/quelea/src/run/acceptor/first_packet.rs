//! Reads the packets of clients that are not admitted yet: no more than a packet needs, and not
//! before its memory is reserved.

use net::{Read, Stream};

use driver::Origin;
use driver::{Charge, Purpose, Short};

/// Almost every CONNECT comes whole with the first read, so that nothing has to be kept of it but
/// what it says. What may lie behind it is bounded by this, too.
const FIRST_READ_BYTES: usize = 4 * 1024;

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// There is a whole packet, or as much of one as has come.
    Open,
    /// The client sends no more.
    Closed,
    /// The packet is not complete, and there is no room to wait for it.
    Short(Short),
}

/// Reads until a packet is whole at the front of `bytes`, and little beyond it. Its length is
/// charged before it is waited for. One of more than `bytes_max` is not read any further.
pub(super) fn read_packet(
    stream: &mut Stream,
    bytes: &mut Vec<u8>,
    scratch: &mut [u8],
    charge: &mut Charge<Origin>,
    bytes_max: u32,
) -> Outcome {
    loop {
        let len = codec::packet_len(bytes).ok().flatten();
        if len.is_some_and(|len| len <= bytes.len() || len > bytes_max as usize) {
            break;
        }
        let wanted = len.map_or(FIRST_READ_BYTES, |len| len - bytes.len()).min(scratch.len());
        let count = match stream.read(&mut scratch[..wanted]) {
            Ok(Read::Bytes(count)) => count,
            Ok(Read::WouldBlock) => break,
            Ok(Read::Closed) | Err(_) => return Outcome::Closed,
        };
        if let Err(short) = keep(bytes, &scratch[..count], charge, bytes_max) {
            return Outcome::Short(short);
        }
        if stream.is_drained(count, wanted) {
            break;
        }
    }
    if stream.wants_write() && stream.flush().is_err() {
        return Outcome::Closed;
    }
    Outcome::Open
}

/// Appends what has come. If the length of the packet is known now and it is not complete, room for
/// all of it is made, once.
fn keep(
    bytes: &mut Vec<u8>,
    more: &[u8],
    charge: &mut Charge<Origin>,
    bytes_max: u32,
) -> Result<(), Short> {
    let was_known = matches!(codec::packet_len(bytes), Ok(Some(_)));
    bytes.extend_from_slice(more);
    match codec::packet_len(bytes) {
        Ok(Some(len)) if !was_known && len > bytes.len() && len <= bytes_max as usize => {
            charge.raise(len as u64, Purpose::Unfinished)?;
            bytes.reserve_exact(len - bytes.len());
            Ok(())
        }
        _ => Ok(()),
    }
}
