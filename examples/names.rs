//! Names for the addresses of this program, for the examples that print them. Not for signal
//! handlers.

use std::ffi::{c_int, c_void};

use cairn_format::{Frame, StatedAddress};
use cairn_symbols::{Error, Lookup, ModuleId, Symbolizer, SymbolizerOptions};

/// The symbols of the running program.
pub(crate) struct Names {
    symbolizer: Symbolizer,
    program: ModuleId,
    /// Difference of addresses in memory and those in the file.
    bias: u64,
}

impl Names {
    /// Reads the program's own file.
    pub(crate) fn of_this_program() -> Result<Self, Error> {
        let mut symbolizer = Symbolizer::new(SymbolizerOptions::new());
        let program = symbolizer.add_file("/proc/self/exe")?;
        Ok(Self { symbolizer, program, bias: bias_of_this_program() })
    }

    /// Returns the function that a frame is in, or its bare address when it is in none of this
    /// program.
    pub(crate) fn name(&self, frame: Frame) -> String {
        let Some(address) = frame.lookup_address() else { return format!("{frame:?}") };
        let stated = StatedAddress::new(address.value().wrapping_sub(self.bias));
        let answer = self.symbolizer.resolve(self.program, Lookup::stated(stated));
        // The last one is the function that the others are inlined in.
        let function = answer.frames().iter().rev().find_map(|frame| frame.function.as_deref());
        function.map_or_else(|| format!("{address}"), str::to_owned)
    }
}

/// Returns the loader lists the program first.
fn bias_of_this_program() -> u64 {
    /// # Safety
    ///
    /// - `module` is valid during the call, and `bias` points to a `u64` to which no other
    ///   reference exists.
    unsafe extern "C" fn first(module: *mut libc::dl_phdr_info, _: usize, bias: *mut c_void) -> c_int {
        // SAFETY: the caller promises a valid module and the only reference to a `u64`.
        unsafe { *bias.cast::<u64>() = (*module).dlpi_addr };
        1
    }
    let mut bias = 0_u64;
    // SAFETY: `first` gets a pointer to `bias` back.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut bias).cast()) };
    bias
}
