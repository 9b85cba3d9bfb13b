//! WebSocket frames (RFC 6455, section 5) as a parser over bytes: no socket, no allocation for
//! data.

use thiserror::Error;

/// Takes a byte stream of frames apart, wherever its pieces are cut.
///
/// MQTT packets may span frames and frames may hold several packets (MQTT-6.0.0-2), so messages
/// mean nothing here: the payloads of all data frames, in order, are the application's byte stream.
pub struct Decoder {
    role: Role,
    /// A fragmented message is under way: the next data frame must be a continuation.
    is_in_message: bool,
    state: State,
    /// The header of the next frame as far as it has come.
    header: [u8; HEADER_BYTES_MAX],
    header_len: u8,
    frame_bytes_max: u32,
    /// The payload of a control frame as far as it has come.
    control: Vec<u8>,
}

/// Which end decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Frames must be masked.
    Server,
    /// Frames must not be masked.
    Client,
}

/// What [`Decoder::decode`] got out of some bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Bytes dealt with. Fewer than were given only after a control frame: call again with the
    /// rest.
    pub taken: usize,
    /// Bytes of application data, now at the front of the bytes given.
    pub payload: usize,
    /// The control frame at which decoding stopped.
    pub control: Option<Control>,
}

/// A control frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// To be answered by a pong with the same payload.
    Ping(Vec<u8>),
    Pong,
    /// To be answered by a close frame; nothing after it counts. `None`: no code was given.
    Close(Option<u16>),
}

/// What kind of frame to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    Continuation = 0x0,
    Text = 0x1,
    Binary = 0x2,
    Close = 0x8,
    Ping = 0x9,
    Pong = 0xa,
}

/// A breach of the protocol, to be answered by a close frame with [`FrameError::close_code`].
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    #[error("a WebSocket text frame arrived: MQTT needs binary frames (MQTT-6.0.0-1)")]
    Text,
    #[error("a WebSocket frame is longer than the limit")]
    TooLong,
    #[error("a WebSocket frame has a reserved bit set")]
    ReservedBit,
    #[error("a WebSocket frame has an unknown opcode")]
    OpcodeUnknown,
    #[error("a WebSocket frame from the client is not masked")]
    MaskMissing,
    #[error("a WebSocket frame from the server is masked")]
    MaskUnexpected,
    #[error("the length of a WebSocket frame is not in its shortest form")]
    LengthForm,
    #[error("a WebSocket control frame is fragmented or longer than 125 bytes")]
    ControlForm,
    #[error("a WebSocket continuation frame has nothing to continue")]
    ContinuationUnexpected,
    #[error("a new WebSocket message began within another")]
    ContinuationMissing,
    #[error("a WebSocket close frame has an invalid code or length")]
    CloseInvalid,
    #[error("the reason in a WebSocket close frame is not UTF-8")]
    CloseText,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Header,
    Data(Payload),
    Control(Opcode, Payload),
}

/// The rest of a frame's payload.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Payload {
    left: u32,
    /// Turned so that its first byte is for the next byte of the payload; zero if unmasked.
    mask: [u8; 4],
}

impl Decoder {
    pub fn new(role: Role, frame_bytes_max: u32) -> Self {
        Self {
            role,
            is_in_message: false,
            state: State::Header,
            header: [0; HEADER_BYTES_MAX],
            header_len: 0,
            frame_bytes_max,
            control: Vec::new(),
        }
    }

    /// Goes on with the next bytes of the stream. Application data is unmasked in place and moved
    /// to the front of `bytes`. After an error the stream cannot be understood any more.
    pub fn decode(&mut self, bytes: &mut [u8]) -> Result<Decoded, FrameError> {
        let mut decoded = Decoded::default();
        loop {
            match self.state {
                State::Header => match self.take_header(&bytes[decoded.taken..])? {
                    (n, true) => decoded.taken += n,
                    (n, false) => {
                        decoded.taken += n;
                        return Ok(decoded);
                    }
                },
                State::Data(ref mut payload) => {
                    let n = payload.take_from(bytes, decoded.taken);
                    bytes.copy_within(decoded.taken..decoded.taken + n, decoded.payload);
                    decoded.taken += n;
                    decoded.payload += n;
                    if payload.left > 0 {
                        return Ok(decoded);
                    }
                    self.state = State::Header;
                }
                State::Control(opcode, ref mut payload) => {
                    let n = payload.take_from(bytes, decoded.taken);
                    self.control.extend_from_slice(&bytes[decoded.taken..decoded.taken + n]);
                    decoded.taken += n;
                    if payload.left > 0 {
                        return Ok(decoded);
                    }
                    self.state = State::Header;
                    decoded.control = Some(self.finish_control(opcode)?);
                    return Ok(decoded);
                }
            }
        }
    }

    /// Takes bytes into the header, as few as it needs, and says whether it is whole now.
    fn take_header(&mut self, bytes: &[u8]) -> Result<(usize, bool), FrameError> {
        let mut taken = 0;
        loop {
            let have = usize::from(self.header_len);
            let need = self.header_need();
            if have >= need {
                self.header_len = 0;
                self.state = self.parse_header(need)?;
                return Ok((taken, true));
            }
            let n = (need - have).min(bytes.len() - taken);
            if n == 0 {
                return Ok((taken, false));
            }
            self.header[have..have + n].copy_from_slice(&bytes[taken..taken + n]);
            self.header_len += n as u8;
            taken += n;
            if have < 2 && have + n >= 2 {
                self.check_head()?;
            }
        }
    }

    /// How long the header is, as far as its bytes can tell by now.
    fn header_need(&self) -> usize {
        if self.header_len < 2 {
            return 2;
        }
        let length = match self.header[1] & LENGTH_BITS {
            LENGTH_IN_2 => 2,
            LENGTH_IN_8 => 8,
            _ => 0,
        };
        let mask = if self.header[1] & MASK_BIT != 0 { 4 } else { 0 };
        2 + length + mask
    }

    /// What the first two bytes give away is refused before the rest arrives.
    fn check_head(&self) -> Result<(), FrameError> {
        let [first, second] = [self.header[0], self.header[1]];
        if first & RESERVED_BITS != 0 {
            return Err(FrameError::ReservedBit);
        }
        let opcode = Opcode::parse(first & OPCODE_BITS)?;
        let is_final = first & FINAL_BIT != 0;
        match opcode {
            Opcode::Text => return Err(FrameError::Text),
            Opcode::Continuation if !self.is_in_message => {
                return Err(FrameError::ContinuationUnexpected);
            }
            Opcode::Binary if self.is_in_message => return Err(FrameError::ContinuationMissing),
            Opcode::Close | Opcode::Ping | Opcode::Pong
                if !is_final || second & LENGTH_BITS > CONTROL_BYTES_MAX =>
            {
                return Err(FrameError::ControlForm);
            }
            _ => {}
        }
        match (self.role, second & MASK_BIT != 0) {
            (Role::Server, false) => Err(FrameError::MaskMissing),
            (Role::Client, true) => Err(FrameError::MaskUnexpected),
            _ => Ok(()),
        }
    }

    fn parse_header(&mut self, len: usize) -> Result<State, FrameError> {
        let header = &self.header;
        let (length, mask_at) = match header[1] & LENGTH_BITS {
            LENGTH_IN_2 => (u64::from(u16::from_be_bytes([header[2], header[3]])), 4),
            LENGTH_IN_8 => {
                let mut length = [0; 8];
                length.copy_from_slice(&header[2..10]);
                (u64::from_be_bytes(length), 10)
            }
            short => (u64::from(short), 2),
        };
        let length_min = match mask_at {
            4 => u64::from(LENGTH_IN_2),
            10 => u64::from(u16::MAX) + 1,
            _ => 0,
        };
        if length < length_min {
            return Err(FrameError::LengthForm);
        }
        let left = u32::try_from(length).map_err(|_| FrameError::TooLong)?;
        if left > self.frame_bytes_max {
            return Err(FrameError::TooLong);
        }
        let mut mask = [0; 4];
        if len == mask_at + 4 {
            mask.copy_from_slice(&header[mask_at..len]);
        }
        let payload = Payload { left, mask };
        match Opcode::parse(header[0] & OPCODE_BITS)? {
            Opcode::Continuation | Opcode::Binary | Opcode::Text => {
                self.is_in_message = header[0] & FINAL_BIT == 0;
                Ok(State::Data(payload))
            }
            control => Ok(State::Control(control, payload)),
        }
    }

    fn finish_control(&mut self, opcode: Opcode) -> Result<Control, FrameError> {
        let payload = std::mem::take(&mut self.control);
        match opcode {
            Opcode::Ping => Ok(Control::Ping(payload)),
            Opcode::Close => parse_close(&payload).map(Control::Close),
            _ => Ok(Control::Pong),
        }
    }
}

impl Payload {
    /// Unmasks what `bytes` holds of the payload from `at` on, and says how much that is.
    fn take_from(&mut self, bytes: &mut [u8], at: usize) -> usize {
        let n = (bytes.len() - at).min(self.left as usize);
        mask(&mut bytes[at..at + n], self.mask);
        self.mask.rotate_left(n % 4);
        self.left -= n as u32;
        n
    }
}

impl Opcode {
    fn parse(bits: u8) -> Result<Self, FrameError> {
        match bits {
            0x0 => Ok(Self::Continuation),
            0x1 => Ok(Self::Text),
            0x2 => Ok(Self::Binary),
            0x8 => Ok(Self::Close),
            0x9 => Ok(Self::Ping),
            0xa => Ok(Self::Pong),
            _ => Err(FrameError::OpcodeUnknown),
        }
    }
}

impl FrameError {
    /// The code of the close frame that answers the breach (RFC 6455, section 7.4.1).
    pub fn close_code(self) -> u16 {
        match self {
            Self::Text => CLOSE_UNSUPPORTED,
            Self::TooLong => CLOSE_TOO_LONG,
            Self::CloseText => CLOSE_NOT_UTF8,
            _ => CLOSE_PROTOCOL_ERROR,
        }
    }
}

/// Appends a whole, unfragmented frame. `mask_key` is for the frames of a client.
pub fn encode(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8], mask_key: Option<[u8; 4]>) {
    encode_header(out, opcode, payload.len(), mask_key);
    let at = out.len();
    out.extend_from_slice(payload);
    if let Some(key) = mask_key {
        mask(&mut out[at..], key);
    }
}

/// Appends the header of an unfragmented frame with `len` bytes of payload.
pub fn encode_header(out: &mut Vec<u8>, opcode: Opcode, len: usize, mask_key: Option<[u8; 4]>) {
    let mask_bit = if mask_key.is_some() { MASK_BIT } else { 0 };
    out.push(FINAL_BIT | opcode as u8);
    match len {
        0..=125 => out.push(mask_bit | len as u8),
        126..=0xffff => {
            out.push(mask_bit | LENGTH_IN_2);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        _ => {
            out.push(mask_bit | LENGTH_IN_8);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(mask_key.as_ref().map_or(&[][..], |key| key));
}

/// Masks or unmasks: both are the same exclusive or.
pub fn mask(bytes: &mut [u8], key: [u8; 4]) {
    if key == [0; 4] {
        return;
    }
    let wide = u64::from(u32::from_ne_bytes(key));
    let wide = wide << 32 | wide;
    let (chunks, rest) = bytes.as_chunks_mut::<8>();
    for chunk in chunks {
        *chunk = (u64::from_ne_bytes(*chunk) ^ wide).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(key.iter().cycle()) {
        *byte ^= key;
    }
}

fn parse_close(payload: &[u8]) -> Result<Option<u16>, FrameError> {
    match payload {
        [] => Ok(None),
        [high, low, reason @ ..] => {
            let code = u16::from_be_bytes([*high, *low]);
            // 1004 to 1006 and 1015 must not be sent; below 3000 only what is registered may be.
            if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
                return Err(FrameError::CloseInvalid);
            }
            str::from_utf8(reason).map_err(|_| FrameError::CloseText)?;
            Ok(Some(code))
        }
        [_] => Err(FrameError::CloseInvalid),
    }
}

/// Close code: all is well.
pub const CLOSE_NORMAL: u16 = 1000;
const CLOSE_PROTOCOL_ERROR: u16 = 1002;
const CLOSE_UNSUPPORTED: u16 = 1003;
const CLOSE_NOT_UTF8: u16 = 1007;
const CLOSE_TOO_LONG: u16 = 1009;

const HEADER_BYTES_MAX: usize = 14;
const CONTROL_BYTES_MAX: u8 = 125;
const FINAL_BIT: u8 = 0x80;
const RESERVED_BITS: u8 = 0x70;
const OPCODE_BITS: u8 = 0x0f;
const MASK_BIT: u8 = 0x80;
const LENGTH_BITS: u8 = 0x7f;
const LENGTH_IN_2: u8 = 126;
const LENGTH_IN_8: u8 = 127;

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

    fn server() -> Decoder {
        Decoder::new(Role::Server, 1 << 20)
    }

    /// A masked frame with any first byte and stated length form.
    fn raw(first: u8, length: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![first];
        bytes.extend_from_slice(length);
        bytes[1] |= MASK_BIT;
        bytes.extend_from_slice(&KEY);
        let at = bytes.len();
        bytes.extend_from_slice(payload);
        mask(&mut bytes[at..], KEY);
        bytes
    }

    fn refusal(mut bytes: Vec<u8>) -> FrameError {
        server().decode(&mut bytes).expect_err("a refusal")
    }

    #[test]
    fn the_examples_of_the_rfc_decode() {
        // RFC 6455, section 5.7, with the opcode changed from text to binary.
        let mut masked = [0x82, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
        let decoded = server().decode(&mut masked).expect("good");
        assert_eq!(&masked[..decoded.payload], b"Hello");
        let mut fragments = [0x02, 0x03, 0x48, 0x65, 0x6c, 0x80, 0x02, 0x6c, 0x6f];
        let decoded = Decoder::new(Role::Client, 9).decode(&mut fragments).expect("good");
        assert_eq!(&fragments[..decoded.payload], b"Hello");
    }

    #[test]
    fn control_frames_may_stand_within_a_message() {
        let mut bytes = raw(0x02, &[2], b"ab");
        bytes.extend(raw(0x89, &[4], b"ping"));
        bytes.extend(raw(0x80, &[2], b"cd"));
        let mut decoder = server();
        let first = decoder.decode(&mut bytes).expect("good");
        assert_eq!(first.control, Some(Control::Ping(b"ping".to_vec())));
        assert_eq!(&bytes[..first.payload], b"ab");
        let rest = &mut bytes[first.taken..];
        let second = decoder.decode(rest).expect("good");
        assert_eq!((&rest[..second.payload], second.control), (&b"cd"[..], None));
    }

    #[test]
    fn mqtt_6_0_0_1_a_text_frame_is_refused_with_1003() {
        let error = refusal(raw(0x81, &[1], b"x"));
        assert_eq!((error, error.close_code()), (FrameError::Text, 1003));
    }

    #[test]
    fn breaches_are_refused() {
        assert_eq!(refusal(raw(0xc2, &[0], b"")), FrameError::ReservedBit);
        assert_eq!(refusal(raw(0x83, &[0], b"")), FrameError::OpcodeUnknown);
        assert_eq!(refusal(raw(0x8b, &[0], b"")), FrameError::OpcodeUnknown);
        assert_eq!(refusal(vec![0x82, 0x00]), FrameError::MaskMissing);
        assert_eq!(refusal(raw(0x80, &[0], b"")), FrameError::ContinuationUnexpected);
        assert_eq!(refusal(raw(0x09, &[0], b"")), FrameError::ControlForm);
        assert_eq!(refusal(raw(0x89, &[126, 0, 126], &[0; 126])), FrameError::ControlForm);
        assert_eq!(refusal(raw(0x82, &[126, 0, 125], &[0; 125])), FrameError::LengthForm);
        assert_eq!(
            refusal(raw(0x82, &[127, 0, 0, 0, 0, 0, 0, 255, 255], b"")),
            FrameError::LengthForm
        );
        assert_eq!(refusal(raw(0x82, &[127, 255, 0, 0, 0, 0, 0, 0, 0], b"")), FrameError::TooLong);
        let two = [raw(0x02, &[0], b""), raw(0x82, &[0], b"")].concat();
        assert_eq!(refusal(two), FrameError::ContinuationMissing);
        let masked = &mut raw(0x82, &[0], b"");
        let error = Decoder::new(Role::Client, 9).decode(masked).expect_err("a refusal");
        assert_eq!(error, FrameError::MaskUnexpected);
    }

    #[test]
    fn a_frame_beyond_the_limit_is_refused_at_its_header() {
        let mut decoder = Decoder::new(Role::Server, 1000);
        let mut bytes = raw(0x82, &[126, 3, 0xe8], &[7; 1000]);
        assert_eq!(decoder.decode(&mut bytes).expect("good").payload, 1000);
        let error = decoder.decode(&mut raw(0x82, &[126, 3, 0xe9], b"")).expect_err("a refusal");
        assert_eq!((error, error.close_code()), (FrameError::TooLong, 1009));
    }

    #[test]
    fn close_frames_are_checked() {
        let close = |payload: &[u8]| {
            let mut bytes = raw(0x88, &[payload.len() as u8], payload);
            server().decode(&mut bytes).map(|decoded| decoded.control)
        };
        assert_eq!(close(b""), Ok(Some(Control::Close(None))));
        assert_eq!(close(b"\x03\xe8bye"), Ok(Some(Control::Close(Some(1000)))));
        assert_eq!(close(b"\x03"), Err(FrameError::CloseInvalid));
        for code in [0u16, 999, 1004, 1005, 1006, 1015, 2999, 5000] {
            assert_eq!(close(&code.to_be_bytes()), Err(FrameError::CloseInvalid), "{code}");
        }
        assert_eq!(close(b"\x03\xe8\xff"), Err(FrameError::CloseText));
    }
}
