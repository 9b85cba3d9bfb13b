//! One WebSocket above a byte stream: frames in both directions and the answers that the protocol
//! itself gives.

pub mod frame;
pub mod upgrade;

use frame::{Control, Decoder, FrameError, Opcode, Role};

/// The state of an open WebSocket. Owns no buffer while idle.
pub(crate) struct WebSocket {
    decoder: Decoder,
    /// Payload of the last ping that is not answered yet. RFC 6455, section 5.5.3 allows for
    /// answering only the last, so a flood of pings takes no memory.
    ping: Option<Vec<u8>>,
    /// The close frame due to the peer.
    close_due: Option<u16>,
    is_close_sent: bool,
    is_close_received: bool,
    /// The generator of mask keys; only a client masks.
    masks: Option<MaskKeys>,
    /// Bytes of the MQTT packet under way that have not gone into a frame yet. A server's frames
    /// end where packets do: the standard leaves it open (MQTT-6.0.0-4), but there are clients
    /// that lose what stands behind the first packet of a frame.
    packet_left: u32,
}

impl WebSocket {
    pub(crate) fn server(frame_bytes_max: u32) -> Self {
        Self::new(Decoder::new(Role::Server, frame_bytes_max), None)
    }

    pub(crate) fn client(frame_bytes_max: u32, seed: u64) -> Self {
        Self::new(Decoder::new(Role::Client, frame_bytes_max), Some(MaskKeys(seed)))
    }

    fn new(decoder: Decoder, masks: Option<MaskKeys>) -> Self {
        Self {
            decoder,
            ping: None,
            close_due: None,
            is_close_sent: false,
            is_close_received: false,
            masks,
            packet_left: 0,
        }
    }

    /// Turns bytes from below into application bytes at the front of `bytes`, and says how many.
    pub(crate) fn receive(&mut self, bytes: &mut [u8]) -> Result<usize, FrameError> {
        let (mut taken, mut payload) = (0, 0);
        while taken < bytes.len() && !self.is_close_received {
            let decoded = self.decoder.decode(&mut bytes[taken..]).inspect_err(|error| {
                self.close(error.close_code());
                self.is_close_received = true;
            })?;
            bytes.copy_within(taken..taken + decoded.payload, payload);
            payload += decoded.payload;
            taken += decoded.taken;
            match decoded.control {
                Some(Control::Ping(data)) => self.ping = Some(data),
                Some(Control::Close(code)) => {
                    self.is_close_received = true;
                    self.close(code.unwrap_or(frame::CLOSE_NORMAL));
                }
                Some(Control::Pong) | None => {}
            }
        }
        Ok(payload)
    }

    /// Makes a close frame due, unless one was already.
    pub(crate) fn close(&mut self, code: u16) {
        if !self.is_close_sent && self.close_due.is_none() {
            self.close_due = Some(code);
        }
    }

    /// After it no data may be sent.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_close_sent || self.close_due.is_some()
    }

    pub(crate) fn is_close_received(&self) -> bool {
        self.is_close_received
    }

    pub(crate) fn has_answer(&self) -> bool {
        self.ping.is_some() || self.close_due.is_some()
    }

    /// Appends the control frames that are due.
    pub(crate) fn answer(&mut self, out: &mut Vec<u8>) {
        if let Some(data) = self.ping.take()
            && !self.is_close_sent
        {
            let key = self.mask_key();
            frame::encode(out, Opcode::Pong, &data, key);
        }
        if let Some(code) = self.close_due.take() {
            self.is_close_sent = true;
            let key = self.mask_key();
            frame::encode(out, Opcode::Close, &code.to_be_bytes(), key);
        }
    }

    /// How many of the next bytes, `len_max` at most, belong into one frame. `peek` copies what
    /// comes next, and says how much that is.
    pub(crate) fn next_frame_len(
        &mut self,
        len_max: usize,
        peek: impl FnOnce(&mut [u8]) -> usize,
    ) -> usize {
        if self.masks.is_some() {
            return len_max;
        }
        if self.packet_left == 0 {
            let mut head = [0; PACKET_HEAD_BYTES];
            let n = peek(&mut head);
            self.packet_left = packet_len(&head[..n]).unwrap_or(len_max as u32);
        }
        len_max.min(self.packet_left as usize)
    }

    /// Appends one binary frame that holds `len` bytes, which `fill` appends.
    pub(crate) fn frame(&mut self, out: &mut Vec<u8>, len: usize, fill: impl FnOnce(&mut Vec<u8>)) {
        self.packet_left = self.packet_left.saturating_sub(len as u32);
        let key = self.mask_key();
        frame::encode_header(out, Opcode::Binary, len, key);
        let at = out.len();
        fill(out);
        debug_assert_eq!(out.len(), at + len);
        if let Some(key) = key {
            frame::mask(&mut out[at..], key);
        }
    }

    fn mask_key(&mut self) -> Option<[u8; 4]> {
        self.masks.as_mut().map(MaskKeys::next)
    }
}

/// The length of the MQTT packet that begins so: one byte, then a length in groups of seven bits,
/// lowest first. None: more bytes are needed to decide.
fn packet_len(head: &[u8]) -> Option<u32> {
    let mut len = 0;
    for (at, &byte) in head.iter().enumerate().skip(1) {
        len |= u32::from(byte & 0x7f) << (7 * (at - 1));
        if byte & 0x80 == 0 {
            return Some(at as u32 + 1 + len);
        }
    }
    None
}

/// The fixed header of the longest packets.
const PACKET_HEAD_BYTES: usize = 5;

/// SplitMix64: keys that a script in a browser cannot steer, which is all that masking is for.
struct MaskKeys(u64);

impl MaskKeys {
    fn next(&mut self) -> [u8; 4] {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        ((bits >> 32) as u32).to_ne_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_pings_gets_one_answer() {
        let mut socket = WebSocket::server(1000);
        let mut bytes = Vec::new();
        for n in 0..100u8 {
            frame::encode(&mut bytes, Opcode::Ping, &[n], Some([n; 4]));
        }
        assert_eq!(socket.receive(&mut bytes), Ok(0));
        let mut out = Vec::new();
        socket.answer(&mut out);
        assert_eq!(out, [0x8a, 1, 99]);
        assert!(!socket.has_answer());
    }

    #[test]
    fn a_close_is_answered_once_and_ends_the_stream() {
        let mut socket = WebSocket::server(1000);
        let mut bytes = Vec::new();
        frame::encode(&mut bytes, Opcode::Binary, b"last", Some([1; 4]));
        frame::encode(&mut bytes, Opcode::Close, &4000u16.to_be_bytes(), Some([2; 4]));
        frame::encode(&mut bytes, Opcode::Binary, b"late", Some([3; 4]));
        assert_eq!(socket.receive(&mut bytes), Ok(4));
        assert_eq!(&bytes[..4], b"last");
        assert!(socket.is_close_received() && socket.is_closing());
        socket.close(frame::CLOSE_NORMAL);
        let mut out = Vec::new();
        socket.answer(&mut out);
        assert_eq!(out, [0x88, 2, 0x0f, 0xa0]);
    }

    #[test]
    fn client_and_server_understand_each_other() {
        let (mut client, mut server) = (WebSocket::client(1000, 7), WebSocket::server(1000));
        let mut wire = Vec::new();
        client.frame(&mut wire, 5, |out| out.extend_from_slice(b"hello"));
        client.frame(&mut wire, 5, |out| out.extend_from_slice(b"again"));
        assert!(!wire.windows(5).any(|window| window == b"hello"));
        let n = server.receive(&mut wire).expect("good");
        assert_eq!(&wire[..n], b"helloagain");
    }
}
