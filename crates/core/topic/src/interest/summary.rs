//! What one cell lets others know of its claims: plain data for the wire.

/// One thing that has changed in what a cell claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Some wildcard filter has so many literal levels before its first wildcard. It comes before
    /// the lane of that filter, and only a [`Snapshot`] takes it back.
    Depth(u8),
    /// Some filter claims the lane.
    Set { lane: u32 },
    /// None does any longer.
    Clear { lane: u32 },
}

/// Changes in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The number of the last of them; that of the reader if there are none.
    pub through: u64,
    pub changes: Vec<Change>,
}

/// All that a cell claims, as of one number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    number: u64,
    depths: u32,
    lanes: Lanes,
}

/// Lanes that are claimed, in whichever form is smaller: at most one bit for each lane of the
/// table, which has two for each bucket and two more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lanes {
    /// Their numbers, each higher than the one before.
    List(Vec<u32>),
    /// A bit for each, from the lowest of the first word.
    Bitmap(Vec<u64>),
}

/// Why what another cell has sent cannot be entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SummaryError {
    #[error("bit {bit} in an interest summary: must be below {bits}")]
    Lane { bit: u32, bits: u32 },
    #[error("bit {next} follows bit {bit} in an interest summary: must be higher")]
    Order { bit: u32, next: u32 },
    #[error("{words} words of bits in an interest summary: must be at most {WORDS_MAX}")]
    Words { words: usize },
    #[error("depth {depth} in an interest summary: must be between 1 and {DEPTH_MAX}")]
    Depth { depth: u8 },
}

impl Snapshot {
    /// Of what came over the wire. `depths` has a bit for each depth.
    ///
    /// # Errors
    ///
    /// When it is none that [`super::Interest::snapshot`] could have made of the largest table.
    pub fn new(number: u64, depths: u32, lanes: Lanes) -> Result<Self, SummaryError> {
        check_depths(depths)?;
        lanes.check()?;
        Ok(Self { number, depths, lanes })
    }

    /// Of the claims in a bitmap.
    pub(super) fn of_bitmap(number: u64, depths: u32, bitmap: &[u64]) -> Self {
        let count: usize = bitmap.iter().map(|word| word.count_ones() as usize).sum();
        let is_sparse = count * size_of::<u32>() < size_of_val(bitmap);
        let lanes = if is_sparse {
            let mut list = Vec::with_capacity(count);
            list.extend(lanes_of_bitmap(bitmap));
            Lanes::List(list)
        } else {
            Lanes::Bitmap(bitmap.to_vec())
        };
        Self { number, depths, lanes }
    }

    /// Changes up to this number are in it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Bit `n`: some wildcard filter has `n` literal levels before its first wildcard.
    pub fn depths(&self) -> u32 {
        self.depths
    }

    pub fn form(&self) -> &Lanes {
        &self.lanes
    }

    /// The claimed lanes in ascending order.
    pub fn lanes(&self) -> impl Iterator<Item = u32> + '_ {
        let (list, bitmap) = match &self.lanes {
            Lanes::List(list) => (&list[..], &[][..]),
            Lanes::Bitmap(bitmap) => (&[][..], &bitmap[..]),
        };
        list.iter().copied().chain(lanes_of_bitmap(bitmap))
    }

    /// The highest claimed lane.
    pub(super) fn highest(&self) -> Option<u32> {
        match &self.lanes {
            Lanes::List(list) => list.last().copied(),
            Lanes::Bitmap(bitmap) => {
                let word = bitmap.iter().rposition(|word| *word != 0)?;
                Some(word as u32 * u64::BITS + bitmap[word].ilog2())
            }
        }
    }
}

impl Lanes {
    fn check(&self) -> Result<(), SummaryError> {
        match self {
            Self::List(list) => {
                let unsorted = list.windows(2).find(|pair| pair[0] >= pair[1]);
                if let Some(pair) = unsorted {
                    return Err(SummaryError::Order { bit: pair[0], next: pair[1] });
                }
                list.last().map_or(Ok(()), |lane| check_lane(*lane, LANES_MAX))
            }
            Self::Bitmap(bitmap) if bitmap.len() > WORDS_MAX => {
                Err(SummaryError::Words { words: bitmap.len() })
            }
            Self::Bitmap(_) => Ok(()),
        }
    }
}

pub(super) fn check_lane(lane: u32, lanes: u32) -> Result<(), SummaryError> {
    if lane < lanes { Ok(()) } else { Err(SummaryError::Lane { bit: lane, bits: lanes }) }
}

pub(super) fn check_depth(depth: u8) -> Result<(), SummaryError> {
    if (1..=DEPTH_MAX).contains(&depth) { Ok(()) } else { Err(SummaryError::Depth { depth }) }
}

fn check_depths(depths: u32) -> Result<(), SummaryError> {
    if depths & 1 == 0 { Ok(()) } else { Err(SummaryError::Depth { depth: 0 }) }
}

fn lanes_of_bitmap(bitmap: &[u64]) -> impl Iterator<Item = u32> + '_ {
    (0..).zip(bitmap).flat_map(|(at, word)| bits(*word).map(move |bit| at * u64::BITS + bit))
}

/// The numbers of the bits that are set, from the lowest.
pub(super) fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (bit < u64::BITS).then_some(bit)
    })
}

/// Of the largest table.
const LANES_MAX: u32 = super::lanes_of_table(super::BUCKETS_LOG2_MAX);
const WORDS_MAX: usize = LANES_MAX.div_ceil(u64::BITS) as usize;
const DEPTH_MAX: u8 = super::DEPTHS as u8 - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_table_could_have_made_is_refused() {
        let of_list = |list: &[u32]| Snapshot::new(1, 0, Lanes::List(list.to_vec()));
        assert_eq!(of_list(&[3, 3]), Err(SummaryError::Order { bit: 3, next: 3 }));
        assert_eq!(of_list(&[4, 3]), Err(SummaryError::Order { bit: 4, next: 3 }));
        let beyond = SummaryError::Lane { bit: LANES_MAX, bits: LANES_MAX };
        assert_eq!(of_list(&[0, LANES_MAX]), Err(beyond));
        assert!(of_list(&[0, LANES_MAX - 1]).is_ok());
        let of_words = |words| Snapshot::new(1, 0, Lanes::Bitmap(vec![0; words]));
        assert_eq!(of_words(WORDS_MAX + 1), Err(SummaryError::Words { words: WORDS_MAX + 1 }));
        assert!(of_words(WORDS_MAX).is_ok());
        let of_depths = |depths| Snapshot::new(1, depths, Lanes::List(Vec::new()));
        assert_eq!(of_depths(3), Err(SummaryError::Depth { depth: 0 }));
        assert!(of_depths(!1).is_ok());
    }

    #[test]
    fn both_forms_name_the_same_lanes() {
        let mut bitmap = vec![0; 5];
        let mut lanes = Vec::new();
        for lane in (0..5 * u64::BITS).rev().step_by(7) {
            bitmap[(lane / u64::BITS) as usize] |= 1 << (lane % u64::BITS);
            lanes.insert(0, lane);
            let made = Snapshot::of_bitmap(1, 0, &bitmap);
            let is_list = matches!(made.form(), Lanes::List(_));
            assert_eq!(is_list, lanes.len() < 10, "{}", lanes.len());
            let other =
                if is_list { Lanes::Bitmap(bitmap.clone()) } else { Lanes::List(lanes.clone()) };
            let other = Snapshot::new(1, 0, other).expect("a sound one");
            for snapshot in [made, other] {
                assert!(snapshot.lanes().eq(lanes.iter().copied()));
                assert_eq!(snapshot.highest(), lanes.last().copied());
            }
        }
    }
}
