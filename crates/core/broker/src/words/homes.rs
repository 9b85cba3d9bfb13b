//! Who keeps what: the home of a client id, of a retained topic, and of a shared group.
//!
//! A cluster has a number of cells for ever, and each cell the same number of shards. A name has
//! its home in one shard of one cell, by its hash. To the shards of a cell, another cell is one
//! more place that mail goes to, whatever shard there has the home.

use crate::ShardId;

/// The cells of a cluster, and which of them this one is. A broker that is not in a cluster is one
/// cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Homes {
    cells: u16,
    cell: u16,
    shards: ShardId,
}

/// One of the shards of all cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    pub cell: u16,
    pub shard: ShardId,
}

/// What mail goes to: the shards of the own cell by their numbers, then the other cells in their
/// order.
pub type Place = u16;

/// Kinds of serials that a shard gets from each other: of QoS 2 publishes, the same to be retained,
/// of wills, the same to be retained. Each kind comes in order.
const SOURCE_KINDS: u16 = 4;

/// Places that a cell may have: there is a bit for each in masks.
pub const PLACES_MAX: u16 = topic::SHARDS_MAX;

impl Homes {
    /// A broker of one cell.
    ///
    /// # Panics
    ///
    /// As [`Homes::new`].
    pub fn of_one_cell(shards: ShardId) -> Self {
        Self::new(1, 0, shards)
    }

    /// `cell`: which of the `cells` this one is. `shards`: of each.
    ///
    /// # Panics
    ///
    /// If there are none, if it is not one of them, or if there were more than [`PLACES_MAX`]
    /// places.
    pub fn new(cells: u16, cell: u16, shards: ShardId) -> Self {
        assert!(cell < cells, "cell {cell} of {cells}");
        assert!(shards > 0, "a cell has shards");
        let homes = Self { cells, cell, shards };
        let places = u32::from(cells) - 1 + u32::from(shards);
        assert!(places <= PLACES_MAX.into(), "{places} places, at most {PLACES_MAX}");
        homes
    }

    pub const fn cells(self) -> u16 {
        self.cells
    }

    /// The shards of this cell, and of any.
    pub const fn shards(self) -> ShardId {
        self.shards
    }

    pub const fn has_other_cells(self) -> bool {
        self.cells > 1
    }

    pub const fn places(self) -> Place {
        self.shards + self.cells - 1
    }

    /// The shards of all cells. Names are spread over them, so it never changes where there are
    /// data.
    pub(crate) const fn virtual_shards(self) -> u16 {
        self.cells * self.shards
    }

    /// Numbers of those whose serials a shard notes: each shard of all cells has one of each kind.
    pub(crate) const fn sources(self) -> u16 {
        SOURCE_KINDS * self.virtual_shards()
    }

    /// The number of a shard of this cell among them. It is in the journal.
    pub(crate) const fn source(self, kind: u16, shard: ShardId) -> u16 {
        kind * self.virtual_shards() + self.cell * self.shards + shard
    }

    /// The same of a shard of the cell at this place.
    pub(crate) fn source_at(self, kind: u16, place: Place, shard: ShardId) -> u16 {
        let cell = self.cell_at(place).unwrap_or(self.cell);
        kind * self.virtual_shards() + cell * self.shards + shard
    }

    pub(crate) const fn sender_of(self, source: u16) -> Home {
        self.home(source % self.virtual_shards())
    }

    /// Where a name with this hash has its home.
    pub(crate) const fn of(self, hash: u64) -> Home {
        self.home(((hash as u128 * self.virtual_shards() as u128) >> 64) as u16)
    }

    /// The same among the shards of this cell.
    pub(crate) const fn own_of(self, hash: u64) -> Home {
        let shard = ((hash as u128 * self.shards as u128) >> 64) as ShardId;
        Home { cell: self.cell, shard }
    }

    /// The shards of this cell, a bit for each.
    pub(crate) const fn own_mask(self) -> u64 {
        u64::MAX >> (64 - self.shards as u32)
    }

    const fn home(self, virtual_shard: u16) -> Home {
        Home { cell: virtual_shard / self.shards, shard: virtual_shard % self.shards }
    }

    /// Where mail for a home goes to.
    pub(crate) const fn place_of(self, home: Home) -> Place {
        if home.cell == self.cell {
            home.shard
        } else if home.cell < self.cell {
            self.shards + home.cell
        } else {
            self.shards + home.cell - 1
        }
    }

    /// Where mail for another cell goes to.
    pub const fn place_of_cell(self, cell: u16) -> Place {
        self.place_of(Home { cell, shard: 0 })
    }

    /// Whether a place is a shard of this cell.
    pub const fn is_own(self, place: Place) -> bool {
        place < self.shards
    }

    /// The cell behind a place. None: a shard of this one.
    pub const fn cell_at(self, place: Place) -> Option<u16> {
        if place < self.shards {
            return None;
        }
        let other = place - self.shards;
        Some(if other < self.cell { other } else { other + 1 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_homes() -> impl Strategy<Value = Homes> {
        (1..=12_u16, 1..=16_u16)
            .prop_flat_map(|(cells, shards)| (Just(cells), 0..cells, Just(shards)))
            .prop_map(|(cells, cell, shards)| Homes::new(cells, cell, shards))
    }

    proptest! {
        /// What is stored is found by it after a start.
        #[test]
        fn one_cell_has_the_homes_of_a_broker_without_cells(hash: u64, shards in 1..=64_u16) {
            let homes = Homes::of_one_cell(shards);
            let shard = ((u128::from(hash) * u128::from(shards)) >> 64) as ShardId;
            prop_assert_eq!(homes.place_of(homes.of(hash)), shard);
            prop_assert_eq!(homes.places(), shards);
            prop_assert_eq!(homes.virtual_shards(), shards);
            prop_assert_eq!(homes.source(3, shards - 1), 4 * shards - 1);
        }

        #[test]
        fn all_cells_name_the_same_home(homes in any_homes(), hash: u64, other: u16) {
            let other = Homes { cell: other % homes.cells, ..homes };
            prop_assert_eq!(homes.of(hash), other.of(hash));
        }

        #[test]
        fn each_place_is_a_shard_here_or_one_other_cell(homes in any_homes()) {
            let others: Vec<u16> =
                (homes.shards()..homes.places()).filter_map(|place| homes.cell_at(place)).collect();
            let wanted: Vec<u16> = (0..homes.cells).filter(|cell| *cell != homes.cell).collect();
            prop_assert_eq!(others, wanted);
            prop_assert!((0..homes.shards()).all(|place| homes.cell_at(place).is_none()));
        }

        #[test]
        fn a_home_lies_behind_its_place(homes in any_homes(), hash: u64) {
            let home = homes.of(hash);
            let place = homes.place_of(home);
            prop_assert!(place < homes.places());
            match homes.cell_at(place) {
                None => prop_assert_eq!((homes.cell, place), (home.cell, home.shard)),
                Some(cell) => prop_assert_eq!(cell, home.cell),
            }
        }
    }

    #[test]
    fn a_source_names_its_sender_in_every_cell() {
        let (here, there) = (Homes::new(3, 1, 4), Homes::new(3, 2, 4));
        for kind in 0..SOURCE_KINDS {
            let source = here.source(kind, 2);
            assert!(source < there.sources());
            assert_eq!(there.sender_of(source), Home { cell: 1, shard: 2 });
        }
    }

    #[test]
    fn every_shard_of_every_cell_is_a_home() {
        let homes = Homes::new(3, 1, 4);
        let step = u64::MAX / u64::from(homes.virtual_shards());
        let found =
            (0..homes.virtual_shards()).map(|number| homes.of(u64::from(number) * step + step / 2));
        let found: Vec<(u16, ShardId)> = found.map(|home| (home.cell, home.shard)).collect();
        let wanted: Vec<(u16, ShardId)> =
            (0..3).flat_map(|cell| (0..4).map(move |shard| (cell, shard))).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    #[should_panic(expected = "65 places")]
    fn more_places_than_masks_have_bits_are_refused() {
        let _ = Homes::new(64, 0, 2);
    }
}
