//! The few bytes of MQTT that the relay looks at. It trusts its peers: a packet that is cut short
//! inside its own length reads as empty, and that is all the care it takes.

/// Sent to every client that connects.
pub(crate) const CONNACK_311: &[u8] = &[0x20, 2, 0, 0];
pub(crate) const CONNACK_5: &[u8] = &[0x20, 3, 0, 0, 0];
pub(crate) const PINGRESP: &[u8] = &[0xd0, 0];

pub(crate) const CONNECT: u8 = 1;
pub(crate) const PUBLISH: u8 = 3;
pub(crate) const PUBACK: u8 = 4;
pub(crate) const SUBSCRIBE: u8 = 8;
pub(crate) const PINGREQ: u8 = 12;

/// A packet: its first byte and what follows its length.
#[derive(Clone, Copy)]
pub(crate) struct Packet<'a> {
    pub(crate) first: u8,
    pub(crate) body: &'a [u8],
    /// The whole of it.
    pub(crate) bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// The first packet of `bytes`, if all of it is there.
    pub(crate) fn split(bytes: &'a [u8]) -> Option<Self> {
        let first = *bytes.first()?;
        let mut len = 0;
        for (place, byte) in bytes.iter().enumerate().skip(1).take(4) {
            len |= usize::from(byte & 0x7f) << (7 * (place - 1));
            if byte & 0x80 == 0 {
                let bytes = bytes.get(..place + 1 + len)?;
                return Some(Self { first, body: &bytes[place + 1..], bytes });
            }
        }
        None
    }

    pub(crate) fn kind(&self) -> u8 {
        self.first >> 4
    }

    /// Of a PUBLISH.
    pub(crate) fn qos(&self) -> u8 {
        self.first >> 1 & 3
    }

    /// Of a CONNECT: the protocol level behind the name `MQTT`.
    pub(crate) fn is_5(&self) -> bool {
        self.body.get(6) == Some(&5)
    }

    /// Of a PUBLISH.
    pub(crate) fn topic(&self) -> &'a [u8] {
        text(self.body)
    }

    /// Of a PUBLISH of QoS 1: where its packet id stands in `bytes`.
    pub(crate) fn packet_id_place(&self) -> usize {
        self.bytes.len() - self.body.len() + 2 + self.topic().len()
    }

    /// Of a SUBSCRIBE: its packet id and the filters. No properties are looked at.
    pub(crate) fn filters(&self, is_5: bool) -> ([u8; 2], Vec<&'a [u8]>) {
        let packet_id = [byte(self.body, 0), byte(self.body, 1)];
        let skipped = if is_5 { 3 + usize::from(byte(self.body, 2)) } else { 2 };
        let mut rest = self.body.get(skipped..).unwrap_or_default();
        let mut filters = Vec::new();
        while !rest.is_empty() {
            let filter = text(rest);
            filters.push(filter);
            rest = rest.get(2 + filter.len() + 1..).unwrap_or_default();
        }
        (packet_id, filters)
    }
}

/// A SUBACK that grants QoS 1 to so many filters.
pub(crate) fn suback(packet_id: [u8; 2], filters: usize, is_5: bool) -> Vec<u8> {
    let mut bytes = vec![0x90, 2 + u8::from(is_5) + filters as u8];
    bytes.extend(packet_id);
    bytes.extend(is_5.then_some(0));
    bytes.resize(bytes.len() + filters, 1);
    bytes
}

fn text(bytes: &[u8]) -> &[u8] {
    let len = usize::from(u16::from_be_bytes([byte(bytes, 0), byte(bytes, 1)]));
    bytes.get(2..2 + len).unwrap_or_default()
}

fn byte(bytes: &[u8], place: usize) -> u8 {
    bytes.get(place).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_split_off_when_it_is_whole() {
        let bytes = [0x32, 7, 0, 1, b't', 0, 9, b'h', b'i', 0xc0, 0];
        let packet = Packet::split(&bytes).unwrap();
        assert_eq!((packet.kind(), packet.qos()), (PUBLISH, 1));
        assert_eq!(packet.topic(), b"t");
        assert_eq!(packet.bytes[packet.packet_id_place()..][..2], [0, 9]);
        assert_eq!(Packet::split(&bytes[9..]).unwrap().kind(), PINGREQ);
        assert!(Packet::split(&bytes[..8]).is_none());
    }

    #[test]
    fn filters_of_both_versions() {
        let of_311 = [0x82, 8, 0, 5, 0, 3, b'a', b'/', b'#', 1];
        let (id, filters) = Packet::split(&of_311).unwrap().filters(false);
        assert_eq!((id, filters), ([0, 5], vec![b"a/#".as_slice()]));
        let of_5 = [0x82, 7, 0, 5, 0, 0, 1, b'a', 1];
        assert_eq!(Packet::split(&of_5).unwrap().filters(true).1, [b"a"]);
        assert_eq!(suback([0, 5], 1, true), [0x90, 4, 0, 5, 0, 1]);
        assert_eq!(suback([0, 5], 1, false), [0x90, 3, 0, 5, 1]);
    }
}
