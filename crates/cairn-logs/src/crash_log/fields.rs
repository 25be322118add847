//! Fields of a crash log as they come: a value of the wrong kind is noted, and the rest is read.

use std::fmt;

use cairn_format::{AbsoluteAddress, Frame};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{CrashFrame, CrashImage, CrashLocation, CrashMemory, CrashSymbol, CrashThread};

/// The whole log.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Log {
    #[serde(default)]
    pub(super) timestamp: Field<Box<str>>,
    #[serde(default)]
    pub(super) kind: Field<Box<str>>,
    #[serde(default)]
    pub(super) description: Field<Box<str>>,
    #[serde(default)]
    pub(super) fault_address: Field<Hexadecimal>,
    #[serde(default)]
    pub(super) platform: Field<Box<str>>,
    #[serde(default)]
    pub(super) architecture: Field<Box<str>>,
    pub(super) threads: Vec<CrashThread>,
    #[serde(default)]
    pub(super) omitted_threads: Field<u64>,
    #[serde(default)]
    pub(super) captured_memory: Memory,
    #[serde(default)]
    pub(super) omitted_images: Field<u64>,
    pub(super) images: Option<Vec<CrashImage>>,
    #[serde(default)]
    pub(super) backtrace_time: Field<f64>,
}

/// The fields by which a log is known among other JSON.
#[derive(Deserialize)]
pub(super) struct Sign {
    #[serde(default)]
    pub(super) kind: Field<Box<str>>,
}

/// The value of a field, if it is there and of the right kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Field<T> {
    #[default]
    Absent,
    Value(T),
    Bad,
}

impl<T> Field<T> {
    /// Returns the value; sets `bit` in `bad` when something else was there.
    fn note(self, bit: Bad, bad: &mut u16) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent => None,
            Self::Bad => {
                *bad |= bit.mask();
                None
            }
        }
    }

    /// Returns the same; an absent value is bad, too.
    fn required(self, bit: Bad, bad: &mut u16) -> Option<T> {
        match self {
            Self::Absent => Self::Bad.note(bit, bad),
            other => other.note(bit, bad),
        }
    }
}

impl<T> From<Option<T>> for Field<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Bad, Self::Value)
    }
}

/// A kind of value that a field may have.
pub(super) trait Scalar: Sized {
    fn from_text(_text: &str) -> Option<Self> {
        None
    }

    fn from_integer(_integer: i128) -> Option<Self> {
        None
    }

    fn from_float(_float: f64) -> Option<Self> {
        None
    }

    fn from_bool(_value: bool) -> Option<Self> {
        None
    }
}

impl Scalar for Box<str> {
    fn from_text(text: &str) -> Option<Self> {
        Some(text.into())
    }
}

impl Scalar for bool {
    fn from_bool(value: bool) -> Option<Self> {
        Some(value)
    }
}

impl Scalar for u64 {
    fn from_integer(integer: i128) -> Option<Self> {
        integer.try_into().ok()
    }
}

impl Scalar for i64 {
    fn from_integer(integer: i128) -> Option<Self> {
        integer.try_into().ok()
    }
}

impl Scalar for f64 {
    #[expect(clippy::cast_precision_loss, reason = "seconds: 2^53 of them do not pass")]
    fn from_integer(integer: i128) -> Option<Self> {
        Some(integer as f64)
    }

    fn from_float(float: f64) -> Option<Self> {
        Some(float)
    }
}

/// A number written as `0x` and hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hexadecimal(pub(super) u64);

impl Scalar for Hexadecimal {
    fn from_text(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("0x")?;
        // The parser of the standard library takes a sign, too.
        let is_number = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_number.then(|| u64::from_str_radix(digits, 16).ok().map(Self)).flatten()
    }
}

/// Bytes written as two hexadecimal digits each, without a prefix.
struct Digits(Box<[u8]>);

impl Scalar for Digits {
    fn from_text(text: &str) -> Option<Self> {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let bytes = pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?));
        rest.is_empty().then(|| bytes.collect::<Option<_>>().map(Self)).flatten()
    }
}

/// The kinds of frames that the document has.
#[derive(Clone, Copy)]
enum Kind {
    ProgramCounter,
    ReturnAddress,
    AsyncResumePoint,
    OmittedFrames,
    Truncated,
}

impl Scalar for Kind {
    fn from_text(text: &str) -> Option<Self> {
        Some(match text {
            "programCounter" => Self::ProgramCounter,
            "returnAddress" => Self::ReturnAddress,
            "asyncResumePoint" => Self::AsyncResumePoint,
            "omittedFrames" => Self::OmittedFrames,
            "truncated" => Self::Truncated,
            _ => return None,
        })
    }
}

impl<'de, T: Scalar> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any<T>(std::marker::PhantomData<T>);

        impl<'de, T: Scalar> Visitor<'de> for Any<T> {
            type Value = Field<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(T::from_text(text).into())
            }

            fn visit_u64<E>(self, integer: u64) -> Result<Self::Value, E> {
                Ok(T::from_integer(integer.into()).into())
            }

            fn visit_i64<E>(self, integer: i64) -> Result<Self::Value, E> {
                Ok(T::from_integer(integer.into()).into())
            }

            fn visit_f64<E>(self, float: f64) -> Result<Self::Value, E> {
                Ok(T::from_float(float).into())
            }

            fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
                Ok(T::from_bool(value).into())
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Field::Absent)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Field::Bad)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Field::Bad)
            }
        }

        deserializer.deserialize_any(Any(std::marker::PhantomData))
    }
}

/// The fields of threads, frames and images, one bit each where they are bad.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Bad {
    Kind,
    Address,
    Count,
    Flag,
    Symbol,
    Offset,
    Description,
    Image,
    Location,
    ThreadName,
    Crashed,
    ImageName,
    BuildId,
    Path,
    Base,
    End,
}

impl Bad {
    pub(super) const ALL: [Self; 16] = [
        Self::Kind,
        Self::Address,
        Self::Count,
        Self::Flag,
        Self::Symbol,
        Self::Offset,
        Self::Description,
        Self::Image,
        Self::Location,
        Self::ThreadName,
        Self::Crashed,
        Self::ImageName,
        Self::BuildId,
        Self::Path,
        Self::Base,
        Self::End,
    ];

    const fn mask(self) -> u16 {
        1 << self as u8
    }

    pub(super) const fn is_in(self, bits: u16) -> bool {
        bits & self.mask() != 0
    }

    /// Returns the name of the field, and what its value is not.
    pub(super) const fn problem(self) -> &'static str {
        match self {
            Self::Kind => {
                "\"kind\" is not one of programCounter, returnAddress, asyncResumePoint, omittedFrames and truncated"
            }
            Self::Address => "\"address\" is not a hexadecimal text such as \"0x1f40\"",
            Self::Count => "\"count\" is not a number of frames",
            Self::Flag => "\"inlined\", \"runtimeFailure\", \"thunk\" or \"system\" is not true or false",
            Self::Symbol => "\"symbol\" is not a text",
            Self::Offset => "\"offset\" is not a whole number",
            Self::Description => "\"description\" is not a text",
            Self::Image => "\"image\" is not a text",
            Self::Location => "\"sourceLocation\" is not a \"file\", a \"line\" and a \"column\"",
            Self::ThreadName | Self::ImageName => "\"name\" is not a text",
            Self::Crashed => "\"crashed\" is not true or false",
            Self::BuildId => "\"buildId\" is not pairs of hexadecimal digits without 0x",
            Self::Path => "\"path\" is not a text",
            Self::Base => "\"baseAddress\" is not a hexadecimal text such as \"0x1f40\"",
            Self::End => "\"endOfText\" is not a hexadecimal text such as \"0x1f40\"",
        }
    }
}

/// One frame. Its kind must be there, so that a frame takes more bytes in the log than in memory.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawFrame {
    kind: Field<Kind>,
    #[serde(default)]
    address: Field<Hexadecimal>,
    #[serde(default)]
    count: Field<u64>,
    #[serde(default)]
    inlined: Field<bool>,
    #[serde(default)]
    runtime_failure: Field<bool>,
    #[serde(default)]
    thunk: Field<bool>,
    #[serde(default)]
    system: Field<bool>,
    #[serde(default)]
    symbol: Field<Box<str>>,
    #[serde(default)]
    offset: Field<i64>,
    #[serde(default)]
    description: Field<Box<str>>,
    #[serde(default)]
    image: Field<Box<str>>,
    source_location: Option<RawLocation>,
}

#[derive(Deserialize)]
struct RawLocation {
    #[serde(default)]
    file: Field<Box<str>>,
    #[serde(default)]
    line: Field<u64>,
    #[serde(default)]
    column: Field<u64>,
}

impl From<RawFrame> for CrashFrame {
    fn from(raw: RawFrame) -> Self {
        let mut bad = 0;
        let mut address = |field: Field<Hexadecimal>| {
            field.required(Bad::Address, &mut bad).map(|Hexadecimal(value)| AbsoluteAddress::new(value))
        };
        let frame = match raw.kind {
            Field::Value(Kind::ProgramCounter) => address(raw.address).map(Frame::ProgramCounter),
            Field::Value(Kind::ReturnAddress) => address(raw.address).map(Frame::ReturnAddress),
            Field::Value(Kind::AsyncResumePoint) => address(raw.address).map(Frame::AsyncResumePoint),
            Field::Value(Kind::OmittedFrames) => raw.count.required(Bad::Count, &mut bad).map(Frame::Omitted),
            Field::Value(Kind::Truncated) => Some(Frame::Truncated),
            Field::Absent | Field::Bad => {
                bad |= Bad::Kind.mask();
                None
            }
        };
        let mut flag = |field: Field<bool>| field.note(Bad::Flag, &mut bad).unwrap_or(false);
        let [inlined, runtime_failure, thunk, system] =
            [raw.inlined, raw.runtime_failure, raw.thunk, raw.system].map(&mut flag);
        let location = raw.source_location.and_then(|location| {
            let file = location.file.required(Bad::Location, &mut bad)?;
            // Swift writes 0 for a line or column that it does not know.
            let mut number =
                |field: Field<u64>| field.note(Bad::Location, &mut bad).filter(|&number| number > 0);
            Some(CrashLocation { file, line: number(location.line), column: number(location.column) })
        });
        let symbol = CrashSymbol {
            raw_name: raw.symbol.note(Bad::Symbol, &mut bad),
            offset: raw.offset.note(Bad::Offset, &mut bad),
            description: raw.description.note(Bad::Description, &mut bad),
            image: raw.image.note(Bad::Image, &mut bad),
            location,
        };
        let symbol = (symbol != CrashSymbol::default()).then(|| Box::new(symbol));
        Self { frame, inlined, runtime_failure, thunk, system, symbol, bad }
    }
}

/// One thread. Its frames must be there, so that a thread takes bytes in the log, too.
#[derive(Deserialize)]
pub(super) struct RawThread {
    #[serde(default)]
    name: Field<Box<str>>,
    #[serde(default)]
    crashed: Field<bool>,
    #[serde(default)]
    registers: Registers,
    frames: Vec<CrashFrame>,
}

impl From<RawThread> for CrashThread {
    fn from(raw: RawThread) -> Self {
        let mut bad = 0;
        Self {
            name: raw.name.note(Bad::ThreadName, &mut bad),
            crashed: raw.crashed.note(Bad::Crashed, &mut bad).unwrap_or(false),
            registers: raw.registers.0,
            frames: raw.frames,
            bad,
        }
    }
}

/// One image.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawImage {
    #[serde(default)]
    name: Field<Box<str>>,
    #[serde(default)]
    build_id: Field<Digits>,
    #[serde(default)]
    path: Field<Box<str>>,
    base_address: Field<Hexadecimal>,
    end_of_text: Field<Hexadecimal>,
}

impl From<RawImage> for CrashImage {
    fn from(raw: RawImage) -> Self {
        let mut bad = 0;
        let mut address = |field: Field<Hexadecimal>, bit| {
            field.required(bit, &mut bad).map(|Hexadecimal(value)| AbsoluteAddress::new(value))
        };
        let base = address(raw.base_address, Bad::Base);
        let end_of_text = address(raw.end_of_text, Bad::End);
        Self {
            base,
            end_of_text,
            name: raw.name.note(Bad::ImageName, &mut bad),
            build_id: raw.build_id.note(Bad::BuildId, &mut bad).map(|Digits(bytes)| bytes),
            path: raw.path.note(Bad::Path, &mut bad),
            bad,
        }
    }
}

/// Registers by name, in the order of the log.
#[derive(Default)]
struct Registers(Vec<(Box<str>, Option<u64>)>);

impl<'de> Deserialize<'de> for Registers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RegisterEntries;

        impl<'de> Visitor<'de> for RegisterEntries {
            type Value = Registers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("registers by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut registers = Vec::new();
                while let Some((name, value)) = map.next_entry::<Box<str>, Field<Hexadecimal>>()? {
                    let value = match value {
                        Field::Value(Hexadecimal(value)) => Some(value),
                        Field::Absent | Field::Bad => None,
                    };
                    registers.push((name, value));
                }
                Ok(Registers(registers))
            }
        }

        deserializer.deserialize_map(RegisterEntries)
    }
}

/// Captured memory, by address.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) pieces: Vec<CrashMemory>,
    /// How many entries are not an address and bytes.
    pub(super) bad: u64,
    /// The key of the first one.
    pub(super) first_bad: Option<Box<str>>,
}

impl<'de> Deserialize<'de> for Memory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MemoryEntries;

        impl<'de> Visitor<'de> for MemoryEntries {
            type Value = Memory;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("captured memory by address")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut memory = Memory::default();
                while let Some((key, value)) = map.next_entry::<Box<str>, Field<Digits>>()? {
                    match (Hexadecimal::from_text(&key), value) {
                        (Some(Hexadecimal(address)), Field::Value(Digits(bytes))) => {
                            memory.pieces.push(CrashMemory { address: AbsoluteAddress::new(address), bytes });
                        }
                        _ => {
                            memory.bad += 1;
                            memory.first_bad.get_or_insert(key);
                        }
                    }
                }
                // Swift writes them in the order of a hash table.
                memory.pieces.sort_by_key(|piece| piece.address);
                Ok(memory)
            }
        }

        deserializer.deserialize_map(MemoryEntries)
    }
}
