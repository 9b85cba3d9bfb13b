//! Event Grid's operators.

/// What a condition does with the value at its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    NumberIn,
    NumberNotIn,
    NumberLessThan,
    NumberLessThanOrEquals,
    NumberGreaterThan,
    NumberGreaterThanOrEquals,
    NumberInRange,
    NumberNotInRange,
    BoolEquals,
    StringIn,
    StringNotIn,
    StringBeginsWith,
    StringNotBeginsWith,
    StringEndsWith,
    StringNotEndsWith,
    StringContains,
    StringNotContains,
    IsNullOrUndefined,
    IsNotNull,
}

/// What an operator compares with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// `value = 1`
    Number,
    /// `values = [1, 2]`
    Numbers,
    /// `values = [[1, 2], [5, 6]]`
    Ranges,
    /// `value = true`
    Bool,
    /// `values = ["a", "b"]`
    Texts,
    Nothing,
}

impl Operator {
    pub const ALL: [Self; 19] = [
        Self::NumberIn,
        Self::NumberNotIn,
        Self::NumberLessThan,
        Self::NumberLessThanOrEquals,
        Self::NumberGreaterThan,
        Self::NumberGreaterThanOrEquals,
        Self::NumberInRange,
        Self::NumberNotInRange,
        Self::BoolEquals,
        Self::StringIn,
        Self::StringNotIn,
        Self::StringBeginsWith,
        Self::StringNotBeginsWith,
        Self::StringEndsWith,
        Self::StringNotEndsWith,
        Self::StringContains,
        Self::StringNotContains,
        Self::IsNullOrUndefined,
        Self::IsNotNull,
    ];

    /// Event Grid's name, which rules use.
    pub fn name(self) -> &'static str {
        match self {
            Self::NumberIn => "NumberIn",
            Self::NumberNotIn => "NumberNotIn",
            Self::NumberLessThan => "NumberLessThan",
            Self::NumberLessThanOrEquals => "NumberLessThanOrEquals",
            Self::NumberGreaterThan => "NumberGreaterThan",
            Self::NumberGreaterThanOrEquals => "NumberGreaterThanOrEquals",
            Self::NumberInRange => "NumberInRange",
            Self::NumberNotInRange => "NumberNotInRange",
            Self::BoolEquals => "BoolEquals",
            Self::StringIn => "StringIn",
            Self::StringNotIn => "StringNotIn",
            Self::StringBeginsWith => "StringBeginsWith",
            Self::StringNotBeginsWith => "StringNotBeginsWith",
            Self::StringEndsWith => "StringEndsWith",
            Self::StringNotEndsWith => "StringNotEndsWith",
            Self::StringContains => "StringContains",
            Self::StringNotContains => "StringNotContains",
            Self::IsNullOrUndefined => "IsNullOrUndefined",
            Self::IsNotNull => "IsNotNull",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operator| operator.name() == name)
    }

    pub(super) fn takes(self) -> Takes {
        match self {
            Self::NumberLessThan
            | Self::NumberLessThanOrEquals
            | Self::NumberGreaterThan
            | Self::NumberGreaterThanOrEquals => Takes::Number,
            Self::NumberIn | Self::NumberNotIn => Takes::Numbers,
            Self::NumberInRange | Self::NumberNotInRange => Takes::Ranges,
            Self::BoolEquals => Takes::Bool,
            Self::StringIn
            | Self::StringNotIn
            | Self::StringBeginsWith
            | Self::StringNotBeginsWith
            | Self::StringEndsWith
            | Self::StringNotEndsWith
            | Self::StringContains
            | Self::StringNotContains => Takes::Texts,
            Self::IsNullOrUndefined | Self::IsNotNull => Takes::Nothing,
        }
    }

    /// Does it hold if none of its values fits?
    pub(super) fn is_negative(self) -> bool {
        matches!(
            self,
            Self::NumberNotIn
                | Self::NumberNotInRange
                | Self::StringNotIn
                | Self::StringNotBeginsWith
                | Self::StringNotEndsWith
                | Self::StringNotContains
        )
    }

    /// Does it hold if there is no value of its type at the key? The documentation of Event Grid
    /// leaves open `NumberNotInRange`, which is treated as the other comparisons here.
    pub(super) fn holds_without_value(self) -> bool {
        matches!(self, Self::NumberNotIn | Self::StringNotIn | Self::IsNullOrUndefined)
    }
}
