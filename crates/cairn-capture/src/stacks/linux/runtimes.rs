//! Steps out of the code of runtimes, which is in no module and mostly without frame pointers.
//!
//! LLVM's compilers register tables, which are copied ([`registered`]). LuaJIT and PHP run compiled
//! code in the frame of their interpreter. The distance to the frame's end is no property of the
//! code's bytes, but of the runtime's data and of its functions: `cairn_unwind::x86_64::luajit` and
//! `php` have the steps and their proofs.
//!
//! Nothing is learned of a stack with such a step: each capture takes it again, and checks each
//! part of its proof. So no event of a runtime can make a cached step wrong. In processes without
//! these runtimes nothing here is called.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use cairn_format::AbsoluteAddress;
use cairn_unwind::x86_64::luajit::{self, TracePlace};
use cairn_unwind::x86_64::php::{self, PhpCode, PhpFunctions};
use cairn_unwind::{CoreRegisters, MemoryReader};

use crate::stacks::arch::{Rule, RuleKind};
use crate::stacks::generated::Evidence;
use crate::stacks::index::MIX;
use crate::stacks::modules::{identity_of_loaded, rule_at};
use crate::stacks::own_memory;
use crate::stacks::process::Process;
use crate::stacks::registered;

/// True once a module with LuaJIT was loaded.
static HAS_LUAJIT: AtomicBool = AtomicBool::new(false);

/// The functions of PHP; `execute` is 0 without one, and is written last.
struct Php {
    execute: AtomicU64,
    execute_variable: AtomicU64,
    rule: AtomicU32,
    identity: AtomicU32,
}

static PHP: Php = Php {
    execute: AtomicU64::new(0),
    execute_variable: AtomicU64::new(0),
    rule: AtomicU32::new(0),
    identity: AtomicU32::new(0),
};

/// Where LuaJIT's list of traces is; 0 for unknown. Steps check it.
static TRACE_LIST_OFFSET: AtomicU64 = AtomicU64::new(0);
/// The numbers of traces, by return address. Steps check them, so that two threads may write one.
static TRACE_NUMBERS: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];

/// Steps through traces of LuaJIT from now on.
///
/// Call it when a module with LuaJIT was loaded.
pub fn step_through_luajit() {
    HAS_LUAJIT.store(true, Ordering::Relaxed);
}

/// Steps through compiled code of PHP from now on. Returns false when its frames are not known.
///
/// The addresses are those of `execute_ex` and of the variable `zend_execute_ex`. Call it when a
/// module with PHP was loaded.
pub fn step_through_php(execute: u64, execute_variable: u64) -> bool {
    /// The instructions that make the frame lie in this part of the function.
    const PROLOGUE_BYTES: u64 = 64;
    if PHP.execute.load(Ordering::Relaxed) != 0 {
        return PHP.execute.load(Ordering::Relaxed) == execute;
    }
    let rules = (execute..execute.saturating_add(PROLOGUE_BYTES)).filter_map(|address| {
        let rule = rule_at(AbsoluteAddress::new(address))?;
        matches!(rule.kind(), RuleKind::FromSp { .. }).then_some(rule)
    });
    let identity = identity_of_loaded(AbsoluteAddress::new(execute));
    match (rules.max_by_key(|rule| rule.cfa_offset()), identity) {
        (Some(rule), Some(identity)) => {
            PHP.execute_variable.store(execute_variable, Ordering::Relaxed);
            PHP.rule.store(rule.bits(), Ordering::Relaxed);
            PHP.identity.store(identity, Ordering::Relaxed);
            PHP.execute.store(execute, Ordering::Release);
            true
        }
        _ => false,
    }
}

/// True when some runtime was found whose code is stepped here.
pub(crate) fn are_known() -> bool {
    registered::are_known() || HAS_LUAJIT.load(Ordering::Relaxed) || PHP.execute.load(Ordering::Relaxed) != 0
}

/// Leaves the runtimes alone whose modules were unloaded.
pub(crate) fn forget_unloaded() {
    let execute = PHP.execute.load(Ordering::Acquire);
    let identity = Some(PHP.identity.load(Ordering::Relaxed));
    if execute != 0 && identity_of_loaded(AbsoluteAddress::new(execute)) != identity {
        PHP.execute.store(0, Ordering::Release);
    }
}

/// The caller of code that a runtime has made; `None` when none of them has.
///
/// The whole walk and the hot path take the step by this function.
pub(crate) fn caller(
    process: &Process,
    callee: CoreRegisters,
    memory: &dyn MemoryReader,
) -> Option<CoreRegisters> {
    let caller = registered_caller(callee, memory)
        .or_else(|| php_caller(process, callee, memory))
        .or_else(|| luajit_caller(process, callee, memory))?;
    (caller.sp > callee.sp).then_some(caller)
}

fn registered_caller(callee: CoreRegisters, memory: &dyn MemoryReader) -> Option<CoreRegisters> {
    // The call lies below its return address.
    registered::rule(callee.pc.wrapping_sub(1))?.apply(callee, &memory).ok()
}

fn php_caller(process: &Process, callee: CoreRegisters, memory: &dyn MemoryReader) -> Option<CoreRegisters> {
    let execute = PHP.execute.load(Ordering::Acquire);
    let functions = PhpFunctions {
        execute,
        execute_variable: PHP.execute_variable.load(Ordering::Relaxed),
        rule: Rule::from_bits(PHP.rule.load(Ordering::Relaxed)),
    };
    (execute != 0).then(|| php::step(&functions, callee, memory, &OwnPhpCode { process }))?
}

struct OwnPhpCode<'a> {
    process: &'a Process,
}

impl PhpCode for OwnPhpCode<'_> {
    fn is_return_address(&self, address: AbsoluteAddress) -> bool {
        self.process.is_return_address(address.value())
    }

    fn is_generated(&self, address: AbsoluteAddress) -> bool {
        self.process.is_generated(address.value(), Evidence::Word)
    }

    fn read(&self, address: AbsoluteAddress, into: &mut [u8]) -> Option<()> {
        (own_memory::read_bytes(address.value(), into) == into.len()).then_some(())
    }
}

fn luajit_caller(
    process: &Process,
    callee: CoreRegisters,
    memory: &dyn MemoryReader,
) -> Option<CoreRegisters> {
    if !HAS_LUAJIT.load(Ordering::Relaxed) {
        return None;
    }
    let index = (callee.pc.wrapping_mul(MIX) >> 56) as usize;
    let number = TRACE_NUMBERS.get(index)?;
    let place = TracePlace {
        list_offset: TRACE_LIST_OFFSET.load(Ordering::Relaxed),
        number: number.load(Ordering::Relaxed),
    };
    let mut is_return_address = |address: AbsoluteAddress| process.is_return_address(address.value());
    let step = luajit::step(callee, memory, place, &mut is_return_address)?;
    if step.place != place {
        TRACE_LIST_OFFSET.store(step.place.list_offset, Ordering::Relaxed);
        number.store(step.place.number, Ordering::Relaxed);
    }
    Some(step.caller)
}
