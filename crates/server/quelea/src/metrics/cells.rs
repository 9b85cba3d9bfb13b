//! The metrics of several cells as those of one process: each sample has the label `cell`.

use std::fmt::Write as _;

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
