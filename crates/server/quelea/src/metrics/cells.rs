//! The metrics of several cells as those of one process: each sample has the label `cell`.

use std::fmt::Write as _;

use broker::MetricType;

use super::{head, write_one};

/// What a node has of the others.
#[derive(Clone, Debug, Default)]
pub struct LinkFigures {
    /// Clients that have connected here and are relayed to another node, and the reverse.
    pub relayed: [usize; 2],
    /// Relays that were refused.
    pub refused: u64,
    /// Bytes that relays may have under way, beyond the least of each.
    pub lent_bytes: u64,
    pub cells: Vec<CellLink>,
}

/// A cell that this node is active for, and another cell.
#[derive(Clone, Debug, Default)]
pub struct CellLink {
    pub cell: u16,
    pub other: u16,
    pub is_connected: bool,
    /// Questions without an answer, in either direction.
    pub waiting: usize,
    /// Frames that the other cell has not acknowledged.
    pub frames: usize,
    pub frame_bytes: usize,
}

/// Of the links between nodes.
pub fn of_links(figures: &LinkFigures) -> String {
    let (counter, gauge) = (MetricType::Counter, MetricType::Gauge);
    let mut text = String::new();
    let name = "quelea_relayed_connections";
    let help = "Clients that are relayed: `direction=\"out\"`: connected here, with their cell on \
                another node; `in`: the reverse.";
    head(&mut text, name, gauge, help);
    for (direction, count) in ["out", "in"].iter().zip(figures.relayed) {
        let _ = writeln!(text, "{name}{{direction=\"{direction}\"}} {count}");
    }
    let help = "Relays that were refused, by this node and by others.";
    write_one(&mut text, "quelea_relays_refused_total", counter, help, figures.refused);
    let help = "Bytes that relays may have under way, beyond 4 KiB of each.";
    write_one(&mut text, "quelea_relay_lent_bytes", gauge, help, figures.lent_bytes);
    let mut write = |end: &str, help: &str, value: &dyn Fn(&CellLink) -> usize| {
        let name = format!("quelea_cell_{end}");
        head(&mut text, &name, gauge, help);
        for link in &figures.cells {
            let labels = format!("cell=\"{}\",other=\"{}\"", link.cell, link.other);
            let _ = writeln!(text, "{name}{{{labels}}} {}", value(link));
        }
    };
    let help = "1 while a cell of this node has a connection to another cell.";
    write("connected", help, &|link| link.is_connected.into());
    let help = "Questions between a cell of this node and another cell that are not answered.";
    write("waiting", help, &|link| link.waiting);
    let help = "Frames for another cell that it has not acknowledged.";
    write("frames", help, &|link| link.frames);
    let help = "Bytes of frames for another cell that it has not acknowledged.";
    write("frame_bytes", help, &|link| link.frame_bytes);
    text
}

/// A metric with its samples of all cells.
struct Family<'a> {
    /// Behind `# HELP `.
    help: &'a str,
    kind: &'a str,
    samples: String,
}

/// `texts`: what [`of_cell`](super::of_cell) says of each cell, with its number.
pub(crate) fn of_cells(texts: &[(u16, String)]) -> String {
    let mut families: Vec<Family<'_>> = Vec::new();
    for (cell, text) in texts {
        let mut place = 0;
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                place = families.iter().position(|it| it.help == help).unwrap_or(families.len());
                if place == families.len() {
                    families.push(Family { help, kind: "", samples: String::new() });
                }
            } else if let Some(family) = families.get_mut(place) {
                match line.strip_prefix("# TYPE ") {
                    Some(kind) => family.kind = kind,
                    None => write_labelled(&mut family.samples, *cell, line),
                }
            }
        }
    }
    let mut all = String::new();
    for Family { help, kind, samples } in families {
        let _ = write!(all, "# HELP {help}\n# TYPE {kind}\n{samples}");
    }
    all
}

fn write_labelled(samples: &mut String, cell: u16, line: &str) {
    let name_end = line.find(['{', ' ']).unwrap_or(line.len());
    let (name, rest) = line.split_at(name_end);
    let _ = match rest.strip_prefix('{') {
        Some(labels) => writeln!(samples, "{name}{{cell=\"{cell}\",{labels}"),
        None => writeln!(samples, "{name}{{cell=\"{cell}\"}}{rest}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_cells_are_together_and_labelled() {
        let text = |value: u64, shard: bool| {
            let label = if shard { "{shard=\"0\"}" } else { "" };
            let mut text = format!("# HELP a A thing.\n# TYPE a counter\na{label} {value}\n");
            if value == 2 {
                text += "# HELP b Another.\n# TYPE b gauge\nb 7\n";
            }
            text
        };
        let all = of_cells(&[(0, text(1, true)), (3, text(2, false))]);
        assert_eq!(
            all,
            "# HELP a A thing.\n# TYPE a counter\na{cell=\"0\",shard=\"0\"} 1\na{cell=\"3\"} 2\n\
             # HELP b Another.\n# TYPE b gauge\nb{cell=\"3\"} 7\n"
        );
        assert_eq!(of_cells(&[]), "");
    }
}
