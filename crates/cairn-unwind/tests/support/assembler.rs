//! Assembles `.eh_frame`, `.debug_frame` and `.eh_frame_hdr` bytes, written from the standards and
//! not from the reader: it shares no constant and no layout with the crate under test, so that an
//! error in either shows.

/// Bytes that grow, with the encodings of DWARF.
#[derive(Clone, Default, Debug)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    pub fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn uleb(mut self, mut value: u64) -> Self {
        while value >= 128 {
            self.0.push((value % 128) as u8 + 128);
            value /= 128;
        }
        self.u8(value as u8)
    }

    pub fn sleb(mut self, mut value: i64) -> Self {
        while !(-64..64).contains(&value) {
            self.0.push((value.rem_euclid(128)) as u8 + 128);
            value = value.div_euclid(128);
        }
        self.u8(value.rem_euclid(128) as u8)
    }

    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// Bytes with their length in front.
    pub fn block(self, bytes: &[u8]) -> Self {
        self.uleb(bytes.len() as u64).raw(bytes)
    }
}

/// A call frame program, by the mnemonics of the assembler's `.cfi_…` directives.
pub fn program() -> Bytes {
    Bytes::default()
}

macro_rules! instructions {
    ($($name:ident($($argument:ident: $form:ident),*) = $opcode:literal;)*) => {
        impl Bytes {
            $(pub fn $name(self $(, $argument: instructions!(@type $form))*) -> Self {
                self.u8($opcode)$(.$form($argument))*
            })*
        }
    };
    (@type uleb) => { u64 };
    (@type sleb) => { i64 };
    (@type u8) => { u8 };
    (@type u16) => { u16 };
    (@type u32) => { u32 };
    (@type u64) => { u64 };
    (@type block) => { &[u8] };
}

instructions! {
    nop() = 0x00;
    set_loc(address: u64) = 0x01;
    advance_loc1(delta: u8) = 0x02;
    advance_loc2(delta: u16) = 0x03;
    advance_loc4(delta: u32) = 0x04;
    offset_extended(register: uleb, factored: uleb) = 0x05;
    restore_extended(register: uleb) = 0x06;
    undefined(register: uleb) = 0x07;
    same_value(register: uleb) = 0x08;
    register(register: uleb, other: uleb) = 0x09;
    remember_state() = 0x0a;
    restore_state() = 0x0b;
    def_cfa(register: uleb, offset: uleb) = 0x0c;
    def_cfa_register(register: uleb) = 0x0d;
    def_cfa_offset(offset: uleb) = 0x0e;
    def_cfa_expression(expression: block) = 0x0f;
    expression(register: uleb, expression: block) = 0x10;
    offset_extended_sf(register: uleb, factored: sleb) = 0x11;
    def_cfa_sf(register: uleb, factored: sleb) = 0x12;
    def_cfa_offset_sf(factored: sleb) = 0x13;
    val_offset(register: uleb, factored: uleb) = 0x14;
    val_offset_sf(register: uleb, factored: sleb) = 0x15;
    val_expression(register: uleb, expression: block) = 0x16;
    negate_ra_state() = 0x2d;
    args_size(size: uleb) = 0x2e;
    negative_offset_extended(register: uleb, factored: uleb) = 0x2f;
}

impl Bytes {
    /// The short form, for up to 63 code units.
    pub fn advance(self, delta: u8) -> Self {
        assert!(delta < 64);
        self.u8(0x40 + delta)
    }

    /// The short form, for registers up to 63.
    pub fn offset(self, register: u8, factored: u64) -> Self {
        assert!(register < 64);
        self.u8(0x80 + register).uleb(factored)
    }

    /// The short form, for registers up to 63.
    pub fn restore(self, register: u8) -> Self {
        assert!(register < 64);
        self.u8(0xc0 + register)
    }
}

/// The contents of a CIE.
#[derive(Clone, Debug)]
pub struct CieSpec {
    pub version: u8,
    pub augmentation: &'static str,
    /// The data that the letters after `z` announce, in their order.
    pub augmentation_data: Vec<u8>,
    pub code_alignment: u64,
    pub data_alignment: i64,
    pub return_address_register: u64,
    pub program: Bytes,
}

impl CieSpec {
    /// The CIE that compilers emit for x86-64.
    pub fn x86_64() -> Self {
        Self {
            version: 1,
            augmentation: "zR",
            augmentation_data: vec![0x1b],
            code_alignment: 1,
            data_alignment: -8,
            return_address_register: 16,
            program: program().def_cfa(7, 8).offset(16, 1),
        }
    }

    /// The CIE that compilers emit for AArch64.
    pub fn aarch64() -> Self {
        Self {
            code_alignment: 4,
            return_address_register: 30,
            program: program().def_cfa(31, 0),
            ..Self::x86_64()
        }
    }
}

/// The format of lengths and ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// `.eh_frame`.
    Eh,
    /// `.eh_frame` with 64-bit lengths.
    EhLong,
    /// `.debug_frame`.
    Debug,
    /// `.debug_frame` with 64-bit lengths.
    DebugLong,
}

/// A section in the making. It retains the functions that its FDEs cover for the header.
#[derive(Clone, Debug)]
pub struct SectionBuilder {
    pub format: Format,
    pub address: u64,
    pub bytes: Vec<u8>,
    pub functions: Vec<(u64, u64)>,
}

impl SectionBuilder {
    pub fn new(format: Format, address: u64) -> Self {
        Self { format, address, bytes: Vec::new(), functions: Vec::new() }
    }

    /// Appends an entry: its length, then what `id` makes of the place of the id field, then
    /// `body`.
    fn entry(&mut self, id: impl FnOnce(usize) -> Vec<u8>, body: impl FnOnce(u64) -> Vec<u8>) -> usize {
        let start = self.bytes.len();
        let is_long = matches!(self.format, Format::EhLong | Format::DebugLong);
        let id_at = start + if is_long { 12 } else { 4 };
        let id = id(id_at);
        let body_address = self.address + (id_at + id.len()) as u64;
        let mut content = id;
        content.extend(body(body_address));
        while !content.len().is_multiple_of(8) {
            content.push(0);
        }
        let length = content.len() as u64;
        let prefix = if is_long {
            Bytes::default().u32(u32::MAX).u64(length)
        } else {
            Bytes::default().u32(length as u32)
        };
        self.bytes.extend(prefix.0);
        self.bytes.extend(content);
        start
    }

    /// Appends a CIE and returns its offset.
    pub fn cie(&mut self, spec: &CieSpec) -> usize {
        let id = match self.format {
            Format::Eh | Format::EhLong => vec![0; 4],
            Format::Debug => vec![0xff; 4],
            Format::DebugLong => vec![0xff; 8],
        };
        let mut body = Bytes::default().u8(spec.version).raw(spec.augmentation.as_bytes()).u8(0);
        if spec.version == 4 {
            body = body.u8(8).u8(0);
        }
        body = body.uleb(spec.code_alignment).sleb(spec.data_alignment);
        body = match spec.version {
            1 => body.u8(spec.return_address_register as u8),
            _ => body.uleb(spec.return_address_register),
        };
        if spec.augmentation.starts_with('z') {
            body = body.block(&spec.augmentation_data);
        }
        let body = body.raw(&spec.program.0).0;
        self.entry(|_| id, |_| body)
    }

    /// Appends an FDE with pointers relative to themselves in 32 bits, and no augmentation data.
    pub fn fde(&mut self, cie: usize, start: u64, length: u64, program: &Bytes) -> usize {
        let program = program.0.clone();
        self.fde_with(cie, start, length, move |at| {
            let distance = start.wrapping_sub(at) as u32;
            Bytes::default().u32(distance).u32(length as u32).uleb(0).raw(&program).0
        })
    }

    /// Appends an FDE whose body `body` makes, given its address.
    pub fn fde_with(
        &mut self,
        cie: usize,
        start: u64,
        length: u64,
        body: impl FnOnce(u64) -> Vec<u8>,
    ) -> usize {
        let format = self.format;
        let id = move |at: usize| match format {
            Format::Eh | Format::EhLong => ((at - cie) as u32).to_le_bytes().to_vec(),
            Format::Debug => (cie as u32).to_le_bytes().to_vec(),
            Format::DebugLong => (cie as u64).to_le_bytes().to_vec(),
        };
        let offset = self.entry(id, body);
        assert!(length > 0);
        self.functions.push((start, self.address + offset as u64));
        offset
    }

    /// Appends the terminator.
    pub fn end(&mut self) {
        self.bytes.extend([0; 4]);
    }

    /// The search table for this section as if it lay at `address`.
    pub fn header(&self, address: u64) -> Vec<u8> {
        let mut functions = self.functions.clone();
        functions.sort_unstable();
        let frames_distance = self.address.wrapping_sub(address + 4) as u32;
        let mut header = Bytes::default().raw(&[1, 0x1b, 0x03, 0x3b]).u32(frames_distance);
        header = header.u32(functions.len() as u32);
        for (start, fde) in functions {
            header = header.u32(start.wrapping_sub(address) as u32).u32(fde.wrapping_sub(address) as u32);
        }
        header.0
    }
}
