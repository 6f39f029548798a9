//! What a word can be in an address, and the tables that say so, by family of languages.

/// What the words of one row are. A word may stand in several rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Roles(u16);

impl Roles {
    /// Nothing in particular.
    pub const NONE: Self = Self(0);
    /// Type of a street before its name: "улица Ленина", "شارع النيل".
    pub const BEFORE: Self = Self(1);
    /// Type of a street after its name: "Nizami küçəsi", "გამზირი".
    pub const AFTER: Self = Self(1 << 1);
    /// Says that a house number follows: "буд.", "رقم".
    pub const LABEL: Self = Self(1 << 2);
    /// A part of a building, its number after it or before it: "кв.", "διαμ.".
    pub const UNIT: Self = Self(1 << 3);
    /// Kind of a settlement, district or region before its name: "г.", "Phường".
    pub const PLACE_BEFORE: Self = Self(1 << 4);
    /// The same after its name: "rayonu", "область".
    pub const PLACE_AFTER: Self = Self(1 << 5);
    /// An ordinary word too: a street of this type needs more evidence than a number.
    pub const WEAK: Self = Self(1 << 6);
    /// Never part of an address: pronouns, verbs, prepositions of scripts without capitals.
    pub const STOP: Self = Self(1 << 7);
    /// A small word inside names.
    pub const PARTICLE: Self = Self(1 << 8);
    /// Type and name are one word: "ถนนสุขุมวิท".
    pub const JOINED: Self = Self(1 << 9);
    /// Says that a postcode follows: "ПИН", "کدپستی".
    pub const CODE: Self = Self(1 << 10);
    /// May stand in a name: capitalised, or of a script without capitals.
    pub const NAME: Self = Self(1 << 11);
    /// Of a script without capitals.
    pub const CASELESS: Self = Self(1 << 12);
    /// Says after an address that it is one: "रहता हूँ", "adresinde".
    pub const LIVES: Self = Self(1 << 13);
    /// A settlement so small that with the place above it it is an address: "thôn", "desa", "গ্রাম".
    pub const SMALL: Self = Self(1 << 14);
    /// A street in either order.
    pub const STREET: Self = Self(Self::BEFORE.0 | Self::AFTER.0);
    /// A settlement in either order.
    pub const PLACE: Self = Self(Self::PLACE_BEFORE.0 | Self::PLACE_AFTER.0);

    /// One of `roles` is among these.
    pub fn any(self, roles: Self) -> bool {
        self.0 & roles.0 != 0
    }

    /// Without `roles`.
    pub fn without(self, roles: Self) -> Self {
        Self(self.0 & !roles.0)
    }

    /// None at all.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Both together.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A row: what its words are, and the words, lower case, without dots, separated by `|`.
pub(super) type Row = (Roles, &'static str);

/// Every family's table.
pub(super) const TABLES: &[&[Row]] = &[
    super::latin::ROWS,
    super::latin_far::ROWS,
    super::cyrillic::ROWS,
    super::greek_caucasus::ROWS,
    super::semitic_iranian::ROWS,
    super::south_asia::ROWS,
    super::south_east_asia::ROWS,
];
