"""Tools that nothing else imports: doctor, lineage, audit."""
