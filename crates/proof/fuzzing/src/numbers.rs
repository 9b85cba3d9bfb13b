//! Numbers of credentials and queries: an input is the text of one. What is shown of it is the same
//! number, and its order is that of its text.

use policy::Number;

pub fn numbers(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let (first, second) = text.split_once(',').unwrap_or((text, "0"));
    let (Some(first), Some(second)) = (Number::parse(first), Number::parse(second)) else { return };
    for number in [first, second] {
        let shown = number.to_string();
        assert_eq!(Number::parse(&shown), Some(number), "{shown:?} of {text:?}");
        assert!(!shown.contains(['e', 'E']), "{shown:?}");
        // Only one text is shown of it: no zeros at either end.
        let is_padded = shown.contains('.') && shown.ends_with('0') || shown == "-0";
        assert!(!is_padded, "{shown:?} of {text:?}");
    }
    assert_eq!(first == second, first.to_string() == second.to_string(), "{text:?}");
    assert_eq!(first.cmp(&second), second.cmp(&first).reverse(), "{text:?}");
    let whole = |number: Number| number.to_string().parse::<i128>().ok();
    if let (Some(a), Some(b)) = (whole(first), whole(second)) {
        assert_eq!(first.cmp(&second), a.cmp(&b), "{text:?}");
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let nines = "9".repeat(38);
    let texts = [
        "9007199254740993,9007199254740992",
        "-2.50,1e3",
        "1e37,1e-38",
        "120e-1,12",
        "0.000,-0",
        "18446744073709551617,18446744073709551616.5",
        &nines,
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
