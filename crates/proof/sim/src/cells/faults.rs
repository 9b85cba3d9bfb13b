//! Owners that end alone, cells without one, ways on which nothing arrives.

use broker::cells::gateway::{Gateway, PEER_WAIT_MS};

use super::carry::node_of;
use super::{Cells, News, Way};
use crate::world::World;

impl Cells {
    /// The newest epoch of which the gateway on this way has heard.
    pub(super) fn last_known(&self, way: Way) -> u64 {
        self.gateways.get(&way).map_or(0, Gateway::last_epoch)
    }
}

impl World {
    /// All cells begin, one after the other.
    pub(crate) fn start_cells(&mut self) -> Result<(), String> {
        for cell in self.cell_numbers() {
            self.switch_to_cell(cell);
            self.start()?;
        }
        Ok(())
    }

    /// The owner of the current cell has gateways to all others, and these hear of it.
    pub(crate) fn open_gateways(&mut self) {
        let Some(cells) = &mut self.cells else { return };
        let cell = cells.current;
        let shared = node_of(&mut self.node, cells, cell).shared.clone();
        let others: Vec<u16> = cells.others_of(cell).collect();
        for other in others {
            let place = shared.homes.place_of_cell(other);
            let mut gateway = Gateway::new(shared.clone(), place);
            if let Some(flaw) = cells.flaw {
                gateway.plant(flaw);
            }
            cells.gateways.insert((cell, other), gateway);
            cells.news.remove(&(cell, other));
            if cells.is_up(other) && cells.gateways.contains_key(&(other, cell)) {
                let epoch = cells.epoch(other);
                cells.news.entry((cell, other)).or_default().push_back(News::Owner(epoch));
            }
            let epoch = cells.epoch(cell);
            cells.news.entry((other, cell)).or_default().push_back(News::Owner(epoch));
        }
    }

    /// Something of what only worlds with cells have.
    pub(crate) fn step_cells(&mut self) -> Result<(), String> {
        let Some(cells) = &mut self.cells else { return Ok(()) };
        let now_ms = self.now_ms;
        if let Some((cell, until_ms)) = cells.down
            && (until_ms <= now_ms || cells.is_calm)
        {
            return self.own_again(cell);
        }
        match cells.random.below(1000) {
            0..=1 if !cells.is_calm => {
                let connected = cells.links.connected();
                if !connected.is_empty() {
                    cells.toll.ways_held += 1;
                    cells.links.hold(connected[cells.random.below(connected.len())]);
                }
                Ok(())
            }
            2..=9 => {
                cells.links.release();
                Ok(())
            }
            10..=13 if !cells.is_calm && cells.down.is_none() => {
                let percent = cells.ends_percent;
                match cells.random.chance(percent) {
                    true => self.end_a_cell(),
                    false => Ok(()),
                }
            }
            _ => self.step_links(),
        }
    }

    /// The owner of a cell ends, as it is. The next one comes at once, or later.
    fn end_a_cell(&mut self) -> Result<(), String> {
        let now_ms = self.now_ms;
        let Some(cells) = &mut self.cells else { return Ok(()) };
        let count = usize::from(cells.count());
        let cell = cells.random.below(count) as u16;
        let down_ms = ABSENCES_MS[cells.random.below(ABSENCES_MS.len())];
        cells.toll.ends += 1;
        cells.toll.long_absences += u64::from(down_ms > PEER_WAIT_MS);
        cells.down = Some((cell, now_ms + down_ms));
        for other in cells.others_of(cell).collect::<Vec<_>>() {
            if down_ms > 0 {
                let lost = News::Lost(cells.epoch(cell));
                cells.news.entry((other, cell)).or_default().push_back(lost);
            }
            cells.gateways.remove(&(cell, other));
            cells.news.remove(&(cell, other));
        }
        cells.links.close(cell);
        self.switch_to_cell(cell);
        self.note(|| format!("cell {cell} ends, for {down_ms} ms"));
        self.end_current_cell()
    }

    /// A cell has an owner again.
    fn own_again(&mut self, cell: u16) -> Result<(), String> {
        let Some(cells) = &mut self.cells else { return Ok(()) };
        cells.down = None;
        cells.epochs[usize::from(cell)] += 1;
        self.switch_to_cell(cell);
        self.note(|| format!("cell {cell} has a new owner"));
        self.start()
    }

    /// One last end of each cell, when all is at rest.
    pub(crate) fn end_each_cell(&mut self) -> Result<(), String> {
        for cell in self.cell_numbers() {
            self.switch_to_cell(cell);
            self.note(|| format!("cell {cell} ends at the end"));
            if let Some(cells) = &mut self.cells {
                cells.down = Some((cell, 0));
                cells.gateways.retain(|(own, _), _| *own != cell);
                cells.links.close(cell);
            }
            self.end_current_cell()?;
            self.own_again(cell)?;
        }
        Ok(())
    }

    pub(crate) fn calm_cells(&mut self) -> Result<(), String> {
        let Some(cells) = &mut self.cells else { return Ok(()) };
        cells.is_calm = true;
        cells.links.release();
        match cells.down {
            Some((cell, _)) => self.own_again(cell),
            None => Ok(()),
        }
    }
}

/// How long a cell has no owner. At 0 others may hear of the new one before they hear that the old
/// one was gone.
const ABSENCES_MS: [u64; 5] = [0, 0, 500, 5_000, 60_000];
