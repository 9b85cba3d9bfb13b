//! What is said on the terminal. Whoever reads it may be gone (`| head`, a closed window), and
//! where it goes may have no more room: that ends no run, and takes no results away.

use std::fmt::Arguments;
use std::io::Write as _;

/// On the standard output.
pub(crate) fn out(words: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_fmt(words).and_then(|()| out.flush());
}

/// On the standard error output, with the end of the line.
pub(crate) fn aside(words: Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{words}");
}

/// As `println!`, but that nothing comes of it if nobody reads.
macro_rules! say {
    ($($words:tt)*) => {
        $crate::cli::say::out(format_args!("{}\n", format_args!($($words)*)))
    };
}

/// As `eprintln!`, likewise.
macro_rules! note {
    ($($words:tt)*) => { $crate::cli::say::aside(format_args!($($words)*)) };
}

pub(crate) use {note, say};
