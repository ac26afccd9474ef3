//! What the safe forms promise: who waits is woken, what is had is given back, and once.

mod memory;
mod process;
mod socket;
mod waiting;
