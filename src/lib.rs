//! Plimsoll finds how many frames per second a device under test really ingests, and which stage loses the rest.
