//! Random bytes from the operating system.

/// `N` random bytes.
///
/// # Panics
///
/// When the operating system has no random source, without which no password is safe.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    #[expect(clippy::expect_used, reason = "going on without randomness would be unsafe")]
    getrandom::fill(&mut bytes).expect("the operating system has a random source");
    bytes
}

/// Compares without telling by its time where the difference is.
pub fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |sum, (x, y)| sum | (x ^ y));
    a.len() == b.len() && std::hint::black_box(difference) == 0
}
