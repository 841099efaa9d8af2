//! Faults of real Redis servers under load, with each policy.

mod load;

mod cluster;
mod node;
mod rejections;
mod replicas;
