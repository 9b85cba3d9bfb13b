//! Topics and names that many facts share, each kept once and as long as a fact needs it.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

/// Bounded by the facts that use them: a text goes with its last use, and its number is given
/// again.
#[derive(Debug, Default)]
pub(super) struct Texts {
    /// With the number of uses.
    texts: Vec<(Box<str>, u32)>,
    numbers: HashTable<u32>,
    hasher: FixedState,
    free: Vec<u32>,
}

impl Texts {
    pub(super) fn new(hasher: FixedState) -> Self {
        Self { hasher, ..Self::default() }
    }

    /// The number of the text, for one use more.
    pub(super) fn enter(&mut self, text: &str) -> u32 {
        let hash = self.hasher.hash_one(text);
        let texts = &self.texts;
        let is_it = |number: &u32| *texts[*number as usize].0 == *text;
        if let Some(number) = self.numbers.find(hash, is_it).copied() {
            self.texts[number as usize].1 += 1;
            return number;
        }
        let number = match self.free.pop() {
            Some(number) => {
                self.texts[number as usize] = (text.into(), 1);
                number
            }
            None => {
                self.texts.push((text.into(), 1));
                self.texts.len() as u32 - 1
            }
        };
        let (texts, hasher) = (&self.texts, &self.hasher);
        let hash_of = |number: &u32| hasher.hash_one(&*texts[*number as usize].0);
        self.numbers.insert_unique(hash, number, hash_of);
        number
    }

    /// One use less.
    pub(super) fn leave(&mut self, number: u32) {
        let Some((text, uses)) = self.texts.get_mut(number as usize) else { return };
        *uses = uses.saturating_sub(1);
        if *uses > 0 {
            return;
        }
        let hash = self.hasher.hash_one(&**text);
        if let Ok(entry) = self.numbers.find_entry(hash, |known| *known == number) {
            entry.remove();
            *text = Box::default();
            self.free.push(number);
        }
    }

    pub(super) fn get(&self, number: u32) -> &str {
        self.texts.get(number as usize).map_or("", |(text, _)| text)
    }

    /// All numbers are below.
    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_kept_once_and_goes_with_its_last_use() {
        let mut texts = Texts::default();
        let (a, b) = (texts.enter("a"), texts.enter("b"));
        assert_eq!(texts.enter("a"), a);
        texts.leave(a);
        assert_eq!((texts.get(a), texts.get(b)), ("a", "b"));
        texts.leave(a);
        let c = texts.enter("c");
        assert_eq!((c, texts.get(c), texts.len()), (a, "c", 2));
        let again = texts.enter("a");
        assert_ne!(again, c);
        assert_eq!(texts.get(again), "a");
        for round in 0..1000 {
            let number = texts.enter(&format!("reply/{round}"));
            texts.leave(number);
        }
        assert_eq!(texts.len(), 4);
    }
}
