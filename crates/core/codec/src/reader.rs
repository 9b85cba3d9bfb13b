//! A cursor over the body of one packet. Whatever it cannot read is a violation, since the whole
//! body has arrived by then.

use crate::rules::{self, Rule};
use crate::{Version, Violation, text, varint};

pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    pub(crate) version: Version,
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn new(body: &'a [u8], version: Version) -> Self {
        Self { rest: body, version }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline]
    pub(crate) fn fail(&self, rule: &Rule) -> Violation {
        rule.broken(self.version)
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Violation> {
        let Some((taken, rest)) = self.rest.split_at_checked(len) else {
            return Err(self.fail(&rules::TRUNCATED));
        };
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Violation> {
        let Some((taken, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.fail(&rules::TRUNCATED));
        };
        self.rest = rest;
        Ok(*taken)
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Result<u8, Violation> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Takes the next byte if it is 0.
    #[inline]
    pub(crate) fn skip_zero(&mut self) -> bool {
        let Some((0, rest)) = self.rest.split_first() else { return false };
        self.rest = rest;
        true
    }

    #[inline]
    pub(crate) fn short(&mut self) -> Result<u16, Violation> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub(crate) fn long(&mut self) -> Result<u32, Violation> {
        self.array().map(u32::from_be_bytes)
    }

    /// A variable byte integer, which must be in its shortest form (`MQTT-1.5.5-1`).
    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u32, Violation> {
        let (value, len) = match varint::read(self.rest) {
            Ok(Some(read)) => read,
            Ok(None) => return Err(self.fail(&rules::TRUNCATED)),
            Err(varint::Malformed) => return Err(self.fail(&rules::VARINT)),
        };
        if len != varint::len(value) {
            return Err(self.fail(&rules::OVERLONG));
        }
        self.rest = &self.rest[len..];
        Ok(value)
    }

    /// Bytes behind a two byte length.
    #[inline]
    pub(crate) fn binary(&mut self) -> Result<&'a [u8], Violation> {
        let len = self.short()?;
        self.take(usize::from(len))
    }

    #[inline]
    pub(crate) fn text(&mut self) -> Result<&'a str, Violation> {
        let bytes = self.binary()?;
        text::check(bytes).map_err(|rule| self.fail(rule))
    }

    /// A string that names something: without control characters.
    #[inline]
    pub(crate) fn name(&mut self) -> Result<&'a str, Violation> {
        let bytes = self.binary()?;
        text::check_name(bytes).map_err(|rule| self.fail(rule))
    }

    /// A topic name, which may be empty; a wildcard in it breaks `wildcard`. `known`: one that was
    /// checked before.
    #[inline]
    pub(crate) fn topic(
        &mut self,
        wildcard: &'static Rule,
        known: &'a str,
    ) -> Result<&'a str, Violation> {
        let bytes = self.binary()?;
        if bytes == known.as_bytes() {
            return Ok(known);
        }
        text::check_topic(bytes, wildcard).map_err(|rule| self.fail(rule))
    }

    /// All that is left.
    #[inline]
    pub(crate) fn remainder(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// The body must have been read to its end.
    #[inline]
    pub(crate) fn finish(&self) -> Result<(), Violation> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.fail(&rules::TRAILING)) }
    }
}
