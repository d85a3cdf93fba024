//! The end of pods on a simulated clock: scripts with their effects, and properties over all of them.

mod actor;
mod latecomers;
mod order;
mod properties;
mod restart;
mod rules;
mod seeds;
mod world;

/// Checks what was done when, in milliseconds from the beginning.
#[track_caller]
fn check(world: world::World, expected: &[&str]) {
    assert_eq!(world.run().log, expected);
}

/// Checks what users were told when.
#[track_caller]
fn check_told(world: world::World, expected: &[&str]) {
    assert_eq!(world.run().told, expected);
}
