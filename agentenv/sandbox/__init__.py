"""Executors for code: jails made by bubblewrap or Docker, sessions that can be rewound, fakes."""
