//! Deterministic changes to an input, for the short run. libFuzzer brings its own, led by coverage.

/// A small generator of pseudo-random numbers (xorshift64*).
pub struct Random(u64);

impl Random {
    /// `seed` is not 0.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
        number as usize % bound.max(1)
    }
}

/// Makes one to eight changes: bytes set, flipped, inserted, removed, repeated, cut off.
pub fn mutate(input: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(8) {
        let at = random.below(input.len());
        let byte = match random.below(3) {
            0 => random.below(256) as u8,
            1 => TELLING[random.below(TELLING.len())],
            _ => 1 << random.below(8),
        };
        match random.below(8) {
            0 | 1 if !input.is_empty() => input[at] = byte,
            2 | 3 if !input.is_empty() => input[at] ^= byte,
            4 => input.insert(at, byte),
            5 if !input.is_empty() => drop(input.remove(at)),
            6 => input.truncate(at),
            _ => {
                let end = (at + 1 + random.below(16)).min(input.len());
                input.extend_from_within(at.min(end)..end);
            }
        }
    }
}

/// Bytes that mean something in one format or another.
const TELLING: [u8; 14] =
    [0x00, 0x01, 0x7F, 0x80, 0xC0, 0xC2, 0xED, 0xFF, b'+', b'#', b'/', b'$', b'\r', b'\n'];
