//! The rules of the house hold, and the generated table is up to date.

use xtask::{conformance, docs, layers, missing, mutants, prose, source, tidy};

#[test]
fn conformance_table_is_up_to_date() {
    let faults = conformance::stale(&source::root()).expect("the sources are readable");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn generated_documents_are_all_written_by_one_command() {
    let faults = docs::faults(&source::root()).expect("the documents are readable");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn house_is_tidy() {
    let faults = tidy::faults(&source::root()).expect("the sources are readable");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn nothing_new_breaks_the_layers_of_the_core() {
    let faults = layers::faults(&source::root()).expect("the sources are readable");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn each_mutant_of_the_core_fits_one_line_and_names_its_tests() {
    let faults = mutants::faults(&source::root()).expect("the sources are readable");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn what_is_not_supported_is_on_one_page() {
    let faults = missing::faults(&source::root()).expect("the documents are readable");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn no_text_has_more_marks_than_it_may() {
    let faults = prose::faults(&source::root()).expect("the documents are readable");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
