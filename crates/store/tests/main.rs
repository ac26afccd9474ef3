//! The stores, through what they are asked from outside.

mod churn;
mod common;
mod damage;
mod encrypted;
mod faults;
mod filed;
mod lend;
mod oracle;
