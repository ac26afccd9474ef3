//! Which machine the model is.
//!
//! | profile | frames | copies on write | like |
//! |---|---|---|---|
//! | [`SparseKernelCow`] | slots of a large range, a zone for blocks | the kernel | live memory |
//! | [`RamKernelCow`] | scarce, one zone | the kernel | a guest's RAM, lent pages |
//! | [`RamCoreCow`] | scarce, one zone | the core | bare hardware |
//!
//! Where frames are slots, the kernel below has memory of its own: it makes pages where holes are
//! left to it (`Platform::open`), and an operation on a block may stop half-way.

use deckle_mm::{CoreCow, Frames, KernelCow, Ram, Sharing, Slots};

mod sealed {
    pub trait Sealed {}
}

/// A kind of machine; what differs between them is known when the core is compiled for one.
pub trait Profile: sealed::Sealed + Send + Sync + Clone + 'static {
    /// The profile's name.
    const NAME: &'static str;
    /// Whether a kernel is below, which copies on write.
    const BELOW: bool;
    /// The core's way of sharing that goes with it.
    type Sharing: Sharing;
    /// Whether frames are memory; else they are slots.
    const RAM: bool;
    /// What the core does with them.
    type Frames: Frames;
}

/// What ships.
#[derive(Clone, Copy, Debug)]
pub struct SparseKernelCow;
/// RAM below a kernel that copies on write.
#[derive(Clone, Copy, Debug)]
pub struct RamKernelCow;
/// Bare hardware.
#[derive(Clone, Copy, Debug)]
pub struct RamCoreCow;

impl sealed::Sealed for SparseKernelCow {}
impl Profile for SparseKernelCow {
    const NAME: &'static str = "SparseKernelCow";
    const BELOW: bool = true;
    type Sharing = KernelCow;
    const RAM: bool = false;
    type Frames = Slots;
}

impl sealed::Sealed for RamKernelCow {}
impl Profile for RamKernelCow {
    const NAME: &'static str = "RamKernelCow";
    const BELOW: bool = true;
    type Sharing = KernelCow;
    const RAM: bool = true;
    type Frames = Ram;
}

impl sealed::Sealed for RamCoreCow {}
impl Profile for RamCoreCow {
    const NAME: &'static str = "RamCoreCow";
    const BELOW: bool = false;
    type Sharing = CoreCow;
    const RAM: bool = true;
    type Frames = Ram;
}
